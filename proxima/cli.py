"""The commands: parse, call one function, print. No logic."""

import argparse
import contextlib
import errno
import json
import logging
import math
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import proxima
from proxima.config import SECTIONS, all_options, env_keywords, find_option
from proxima.config.options import Option, nearest
from proxima.errors import ProximaError, UsageError

_RESUME_ALIASES = ("--resume-from", "--resume", "--checkpoint")
# What `train --help` shows; `--help-all` shows every option.
_COMMON_OPTIONS = {
    *("env", "num_envs", "total_timesteps", "name", "seed", "device", "algorithm", "learning_rate", "lr_schedule"),
    *("num_steps", "minibatch_size", "update_epochs", "gamma", "entropy_coef", "hidden_sizes", "rnn"),
    *("eval_every", "record_every", "checkpoint_minutes", "auto_resume", "quiet"),
}
_SHELLS = ("bash", "zsh", "tcsh")


class Parser(argparse.ArgumentParser):
    """Errors on one line, and the nearest flag for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UsageError(f"{message}. See {self.prog} --help.")

    def parse_strictly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse; flags may be written with dashes or underscores."""
        arguments, unknown = self.parse_known_args([_with_dashes(argument) for argument in argv])
        if unknown:
            flag = unknown[0].split("=", 1)[0]
            what = "flag" if flag.startswith("-") else "argument"
            hint = nearest(flag, arguments.flags) if what == "flag" else ""
            raise UsageError(f"unknown {what} {flag}.{hint} See {self.prog} {arguments.command} --help.")
        return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; errors of use are one line and exit code 2."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        parser = _parser(all_help="--help-all" in map(_with_dashes, arguments))
        if not arguments:
            parser.print_help()
            return 0
        parsed = parser.parse_strictly(arguments)
        code: int = parsed.function(parsed)
        sys.stdout.flush()
        return code
    except ProximaError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted.")
        return 130
    except BrokenPipeError:  # `proxima envs | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer goes nowhere
        _complain("the results cannot be printed: no space left on device.")
        return 1


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be what has gone
        print(f"proxima: {message}", file=sys.stderr)


def _hear_interrupts() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt, so that files and processes are cleaned up.

    Until a command calls this, which is once its imports are done, Ctrl-C ends the process at once (`__main__.py`):
    in the middle of an import the exception could be swallowed, or be an ImportError.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _parser(*, all_help: bool = False) -> Parser:
    """All commands; `all_help` shows every option in the help of those that train."""
    parser = Parser(prog="proxima", description="Trains PPO agents: exact, fast and readable.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"proxima {proxima.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    train = commands.add_parser(
        "train",
        help="train a policy",
        usage="proxima train [--config FILE] [--resume-from PATH] [options]",
        description="Train a policy. Options come from defaults, then the config file, then flags.",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )
    train.add_argument("--config", metavar="FILE", help="YAML file with options, such as configs/halfcheetah.yaml")
    train.add_argument(
        *_RESUME_ALIASES,
        dest="resume_from",
        metavar="PATH",
        help="go on from a checkpoint, or the newest whole one of a run, with its options and those given here",
    )
    _add_options(train, all_help)
    train.set_defaults(function=_train)

    bench = commands.add_parser(
        "bench",
        help="time a config on this machine, phase by phase",
        usage="proxima bench [--config FILE] [--seconds S] [options of train]",
        description="Train for some seconds without leaving anything on disk, and show where the time goes.",
        allow_abbrev=False,
    )
    bench.add_argument("--config", metavar="FILE", help="YAML file with options")
    bench.add_argument("--seconds", type=float, default=10.0, help="how long to train (default: 10)")
    _add_options(bench, all_help)
    bench.set_defaults(function=_bench)

    resume = commands.add_parser("resume", help="go on with a run from its newest checkpoint", allow_abbrev=False)
    resume.add_argument("run", help="run folder or checkpoint folder")
    resume.add_argument("--total-timesteps", help="train to this many env steps instead")
    resume.set_defaults(function=_resume)

    evaluate = commands.add_parser("evaluate", help="run episodes of a trained policy", allow_abbrev=False)
    evaluate.add_argument("path", help="run folder or checkpoint folder")
    evaluate.add_argument("--best", action="store_true", help="the run's best checkpoint instead of its newest")
    evaluate.add_argument("--env", help="another env id than the policy was trained on")
    evaluate.add_argument("--env-kwargs", metavar="MAPPING", help="keywords of the env that differ from the run's")
    evaluate.add_argument("--episodes", type=int, default=20)
    evaluate.add_argument("--seed", default="0")
    how = evaluate.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", help="take the likeliest action (the default)")
    how.add_argument("--stochastic", action="store_true", help="sample actions")
    evaluate.add_argument("--json", action="store_true", help="print the numbers as JSON")
    evaluate.add_argument("--record", action="store_true", help="write an MP4 to the run's videos/; needs no display")
    evaluate.add_argument("--render", action="store_true", help="show the policy in a window")
    evaluate.add_argument("--analyze-value", action="store_true", help="how good the critic is, in the run's report/")
    evaluate.add_argument("--analyze-policy", action="store_true", help="what the policy does, in the run's report/")
    evaluate.add_argument(
        "--video-length", type=int, metavar="STEPS", help="env steps to record or show (default: one episode)"
    )
    evaluate.set_defaults(function=_evaluate)

    export = commands.add_parser(
        "export",
        help="write a trained policy to a file that runs without Proxima",
        description="Write the deterministic policy, normaliser and action transform included, to one file.",
        allow_abbrev=False,
    )
    export.add_argument("path", help="run folder or checkpoint folder")
    export.add_argument("--best", action="store_true", help="the run's best checkpoint instead of its newest")
    export.add_argument("--format", choices=("onnx", "torchscript"), default="onnx", help="(default: onnx)")
    export.add_argument("--out", metavar="FILE", help="the file to write (default: beside the checkpoint)")
    export.set_defaults(function=_export)

    compare = commands.add_parser(
        "compare",
        help="compare finished runs in one page",
        description="Compare runs by their metrics: curves over seeds, final returns, options that differ.",
        allow_abbrev=False,
    )
    compare.add_argument("runs", nargs="+", metavar="[LABEL=]RUN", help="run folder, or a folder of runs")
    compare.add_argument("--out", metavar="DIR", default="comparison", help="where to write (default: comparison)")
    compare.add_argument(
        "--threshold", type=float, metavar="RETURN", help="the return to be reached (default: 80 %% of the way up)"
    )
    compare.add_argument("--markdown", action="store_true", help="print the markdown that is written beside the page")
    compare.set_defaults(function=_compare)

    envs = commands.add_parser("envs", help="list what can be trained, and by which back end", allow_abbrev=False)
    envs.add_argument("filter", nargs="?", default="", help="show only ids that contain this")
    envs.set_defaults(function=_envs)

    completion = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description='Print a script that completes commands and flags; for bash: eval "$(proxima completion bash)".',
        allow_abbrev=False,
    )
    completion.add_argument("shell", choices=_SHELLS)
    completion.set_defaults(function=_completion)
    for command in (train, bench, resume, evaluate, export, compare, envs, completion):
        command.set_defaults(flags=list(command._option_string_actions))
    return parser


def _add_options(parser: argparse.ArgumentParser, all_help: bool) -> None:
    """A flag for every option, in the groups of the config's sections."""
    parser.add_argument("--help-all", action="help", help="show every option, in groups, and exit")
    for section, cls in SECTIONS.items():
        group = parser.add_argument_group(section, cls.__doc__)
        for option in (*all_options().values(), *env_keywords().values()):
            if option.section == section:
                _add_flag(group, option, is_shown=all_help or option.name in _COMMON_OPTIONS)
        if not all_help and not any(action.help is not argparse.SUPPRESS for action in group._group_actions):
            group.title = group.description = None


def _add_flag(group: Any, option: Option, *, is_shown: bool) -> None:
    names = [option.name, *option.aliases]
    default = " ".join(map(str, option.default)) if isinstance(option.default, list) else option.default
    text = f"{option.help} (default: {default})".replace("%", "%%") if is_shown else argparse.SUPPRESS
    extra: dict[str, Any] = {"metavar": _metavar(option)}
    if isinstance(option.default, bool):
        extra |= {"nargs": "?", "const": "True"}
        negated = ["--no-" + name.replace("_", "-") for name in names]
        off = {"action": "store_const", "const": "False", "help": argparse.SUPPRESS}
        group.add_argument(*negated, dest=option.name, default=argparse.SUPPRESS, **off)
    elif option.is_list:
        extra |= {"nargs": "+"}
    flags = ["--" + name.replace("_", "-") for name in names]
    group.add_argument(*flags, dest=option.name, default=argparse.SUPPRESS, help=text, **extra)


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    return "True|False" if isinstance(option.default, bool) else option.name.split("_")[-1].upper()


def _with_dashes(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else argument


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given as flags, checked at once so that a bad one is named before anything is built."""
    given = {name: value for name, value in vars(arguments).items() if name in all_options() | env_keywords()}
    for name, value in given.items():
        option = find_option(name, source="flags")
        option.parse(value, source=option.flag)
    return given


def _train(arguments: argparse.Namespace) -> int:
    return _run_training(arguments.config, arguments.resume_from, _overrides(arguments))


def _bench(arguments: argparse.Namespace) -> int:
    from proxima.config import load_config
    from proxima.machine import keep_freed_memory
    from proxima.training.bench import bench

    keep_freed_memory()
    _hear_interrupts()
    if not 0 < arguments.seconds < math.inf:
        raise UsageError(f"seconds is {arguments.seconds}, but it must be positive.")
    print(bench(load_config(arguments.config, _overrides(arguments)), seconds=arguments.seconds).text())
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    overrides = {} if arguments.total_timesteps is None else {"total_timesteps": arguments.total_timesteps}
    return _run_training(None, arguments.run, overrides)


def _run_training(config: str | None, resume_from: str | None, overrides: dict[str, Any]) -> int:
    from proxima.machine import keep_freed_memory
    from proxima.text import number
    from proxima.track.progress import log_handler, make_console
    from proxima.training.trainer import train

    keep_freed_memory()
    console = make_console()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[log_handler(console)])
    result = train(config, resume_from=resume_from, console=console, **overrides)
    if result.config.track.quiet:
        return 0
    # As the user called it, so that the lines can be pasted where the virtual environment is not active.
    folder = "" if shutil.which("proxima") else f"{os.path.relpath(Path(sys.executable).parent)}/"
    run_dir = shlex.quote(str(result.run_dir))
    print(f"run folder   {result.run_dir}")
    print(f"final return {number(result.episode_return)} (mean of the last 100 training episodes)")
    if result.checkpoint is not None:
        print(f"evaluate     {folder}proxima evaluate {shlex.quote(str(result.checkpoint))}")
    if result.checkpoint is not None and result.config.checkpoint.save_optimizer:
        print(f"resume       {folder}proxima resume {run_dir} --total-timesteps {2 * result.global_step}")
    if result.config.track.tensorboard:
        print(f"TensorBoard  {folder}tensorboard --logdir {shlex.quote(str(result.run_dir.parent))}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from proxima.evaluate.episodes import evaluate
    from proxima.evaluate.video import show_checkpoint
    from proxima.runs import checkpoint

    _hear_interrupts()
    seed = find_option("seed", source="").parse(arguments.seed, source="--seed")
    chosen = {"env": arguments.env, "seed": seed, "deterministic": not arguments.stochastic}
    if arguments.env_kwargs is not None:
        chosen["env_kwargs"] = find_option("env_kwargs", source="--env-kwargs").parse(
            arguments.env_kwargs, source="--env-kwargs"
        )
    path = checkpoint.find(arguments.path, best=arguments.best)
    if arguments.episodes < 1:
        raise UsageError(f"episodes is {arguments.episodes}, but it must be >= 1.")
    if arguments.video_length is not None and not (arguments.record or arguments.render):
        raise UsageError("--video-length is the length of a video: add --record or --render.")
    if arguments.render:
        show_checkpoint(path, window=True, length=arguments.video_length, **chosen)
    if arguments.record:
        video = show_checkpoint(path, length=arguments.video_length, **chosen)
        print(f"video {video}", file=sys.stderr if arguments.json else sys.stdout, flush=True)
    analyses = {"value": arguments.analyze_value, "policy": arguments.analyze_policy}
    evaluation = evaluate(path, episodes=arguments.episodes, trace=any(analyses.values()), **chosen)
    print(json.dumps(evaluation.to_dict()) if arguments.json else evaluation.text())
    if any(analyses.values()):
        from proxima.evaluate.report import write_report

        page, lines = write_report(evaluation, **analyses)
        print("\n".join([*lines, f"report {page}"]), file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from proxima.evaluate.export import export, signature
    from proxima.evaluate.policy import load_policy
    from proxima.runs import checkpoint

    _hear_interrupts()
    folder = checkpoint.find(arguments.path, best=arguments.best)
    print(f"exported  {export(folder, format=arguments.format, out=arguments.out)}")
    print(signature(folder))
    hold = load_policy(folder).hold
    if hold.high > 1:
        print(f"hold      each action for {hold.low} to {hold.high} env steps, as in training")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from proxima.report.compare import HEAD, rows, sentences, write_comparison

    _hear_interrupts()
    if arguments.threshold is not None and not math.isfinite(arguments.threshold):
        raise UsageError(f"threshold is {arguments.threshold}, but it must be a finite number.")
    page, markdown, comparison = write_comparison(arguments.runs, out=arguments.out, threshold=arguments.threshold)
    if arguments.markdown:
        print(markdown, end="")
        return 0
    table = [HEAD, *rows(comparison)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *cells in table:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  ".join([name.ljust(widths[0]), *padded]))
    print("\n".join([*sentences(comparison), f"page {page}"]))
    return 0


def _envs(arguments: argparse.Namespace) -> int:
    from proxima.envs.make import list_envs

    rows = [row for row in list_envs() if arguments.filter.lower() in row.id.lower()]
    if not rows:
        raise UsageError(f"no env id contains {arguments.filter!r}: `proxima envs` lists all.")
    width = max(len(row.id) for row in rows)
    print(f"{'id':<{width}}  {'--vec-env-mode':<18}  status")
    for row in rows:
        print(f"{row.id:<{width}}  {', '.join(row.backends):<18}  {row.status}")
    return 0


def _completion(arguments: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(_parser(all_help=True), shell=arguments.shell))
    return 0

"""The commands: parse the arguments, call one function, print the result. No logic."""

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import proxima
from proxima.config import SECTIONS, all_options, env_keywords, suited_options
from proxima.config.options import Option, nearest
from proxima.errors import ProximaError, UsageError

_RESUME_ALIASES = ("--resume-from", "--resume", "--checkpoint")
# Shown by `train --help`; `--help-all` shows every option.
_COMMON_OPTIONS = {
    *("env", "preset", "num_envs", "total_timesteps", "name", "seed", "device", "algorithm", "learning_rate"),
    *("lr_schedule", "num_steps", "minibatch_size", "update_epochs", "gamma", "entropy_coef", "hidden_sizes", "rnn"),
    *("teacher", "init_from", "wandb", "loggers", "log_info", "rollout_workers", "ray_address"),
    *("eval_every", "record_every", "checkpoint_minutes", "auto_resume", "quiet"),
}


_METAVARS = {bool: "True|False", int: "N", float: "X", list: "N", dict: "MAPPING"}
_NAMED_METAVARS = {"init_from": "PATH", "teacher": "PATH", "wandb": "PROJECT"}


class Parser(argparse.ArgumentParser):
    """Errors are UsageErrors of one line; for an unknown flag, with the most similar one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise UsageError(f"{message}. See {self.prog} --help.")

    def parse_strictly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse flags written with dashes or underscores."""
        arguments, unknown = self.parse_known_args([_with_dashes(argument) for argument in argv])
        if unknown:
            flag = unknown[0].split("=", 1)[0]
            what = "flag" if flag.startswith("-") else "argument"
            hint = nearest(flag, arguments.flags) if what == "flag" else ""
            raise UsageError(f"unknown {what} {flag}.{hint} See {self.prog} {arguments.command} --help.")
        return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors are printed on one line."""
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
        _print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _print_error("interrupted.")
        return 130
    except BrokenPipeError:  # `proxima envs | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discard the rest of the buffer
        _print_error("the results cannot be printed: no space left on device.")
        return 1


def _print_error(message: str) -> None:
    rank = os.environ.get("RANK", "0") if "WORLD_SIZE" in os.environ else "0"
    name = "proxima" if rank == "0" else f"proxima, rank {rank}"
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(f"{name}: {message}", file=sys.stderr)


def _raise_on_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, so that files and processes are cleaned up.

    Commands call this after their imports. Until then Ctrl-C exits at once (`__main__.py`), because an import could
    swallow the exception or turn it into an ImportError.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _parser(*, all_help: bool = False) -> Parser:
    """All commands; with `all_help` the help of `train` and `bench` shows every option."""
    parser = Parser(prog="proxima", description="Train, evaluate and compare PPO and DQN agents.")
    parser.add_argument("--version", action="version", version=f"proxima {proxima.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def add(name: str, function: Callable[[argparse.Namespace], int], help: str, **more: Any) -> Parser:
        command = commands.add_parser(name, help=help, **({"description": f"{help[0].upper()}{help[1:]}."} | more))
        command.set_defaults(function=function, flags=command._option_string_actions)
        return command

    train = add(
        "train",
        _train,
        "train a policy",
        usage="proxima train [--config FILE] [--resume-from PATH] [options]",
        description="Train a policy. Flags override the config file, or the preset for the env (`proxima presets`); "
        "these override defaults that suit the env.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )
    train.add_argument(
        *_RESUME_ALIASES,
        dest="resume_from",
        metavar="PATH",
        help="resume a checkpoint, or the newest one of a run, with its options except those given here",
    )
    bench = add(
        "bench",
        _bench,
        "time a config on this machine, phase by phase",
        usage="proxima bench [--config FILE] [--seconds S] [options of train]",
        description="Train for a few seconds, write nothing, and show where the time goes.",
    )
    bench.add_argument("--seconds", type=float, default=10.0, help="how long to train (default: 10)")
    for command in (train, bench):
        command.add_argument("--config", metavar="FILE", help="YAML file with options, or the name of a preset")
        _add_options(command, all_help)

    resume = add("resume", _train, "continue a run from its newest checkpoint")
    resume.add_argument("resume_from", metavar="path", help="run folder or checkpoint folder")
    resume.add_argument("--total-timesteps", metavar="N", default=argparse.SUPPRESS, help="new total of env steps")
    resume.add_argument("--rollout-workers", metavar="N", default=argparse.SUPPRESS, help="new number of Ray workers")
    resume.add_argument("--ray-address", metavar="ADDRESS", default=argparse.SUPPRESS, help="Ray cluster to connect to")
    resume.set_defaults(config=None)

    evaluate = add("evaluate", _evaluate, "run episodes of a trained policy")
    export = add(
        "export",
        _export,
        "write a trained policy to a file that runs without Proxima",
        description="Write the deterministic policy to one file, with observation normalisation and action scaling.",
    )
    for command in (evaluate, export):
        command.add_argument("path", help="run folder or checkpoint folder")
        command.add_argument("--best", action="store_true", help="use the run's best checkpoint, not its newest")
    _add_evaluate_flags(evaluate)
    export.add_argument("--format", choices=("onnx", "torchscript"), default="onnx", help="(default: onnx)")
    export.add_argument("--out", metavar="FILE", help="file to write (default: beside the checkpoint)")

    compare = add(
        "compare",
        _compare,
        "compare finished runs on one page",
        description="Compare runs by their metrics: learning curves over seeds, final returns, options that differ.",
    )
    compare.add_argument("runs", nargs="+", metavar="[LABEL=]RUN", help="run folder, or a folder of runs")
    compare.add_argument("--out", metavar="DIR", default="comparison", help="output folder (default: comparison)")
    threshold = "return to be reached (default: 80 %% of the way from the lowest to the best final return)"
    compare.add_argument("--threshold", type=float, metavar="RETURN", help=threshold)
    compare.add_argument("--markdown", action="store_true", help="print the comparison as markdown")

    envs = add("envs", _envs, "list the envs that can be trained, and their back ends")
    envs.add_argument("filter", nargs="?", default="", help="show only ids that contain this")

    presets = add("presets", _presets, "list the presets: settings that are known to learn, by env")
    presets.add_argument("action", nargs="?", choices=("show",), help="print a preset, to start a config file from")
    presets.add_argument("name", nargs="?", help="the preset to print")

    completion = add(
        "completion",
        _completion,
        "print the completion script of a shell",
        description='Print a script that completes commands and flags; for bash: eval "$(proxima completion bash)".',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return parser


def _add_evaluate_flags(parser: Parser) -> None:
    given: dict[str, Any] = {"default": argparse.SUPPRESS}  # parsed as the options of these names
    parser.add_argument("--env", help="another env id than the policy was trained on", **given)
    parser.add_argument("--env-kwargs", metavar="MAPPING", help="env keyword arguments to change", **given)
    parser.add_argument("--episodes", type=int, default=20, help="number of episodes (default: 20)")
    parser.add_argument("--seed", help="seed of the envs (default: 0)", **given)
    beside = "a second policy, e.g. a student's teacher, in the same envs from the same seeds"
    parser.add_argument("--beside", metavar="PATH", help=beside)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", help="take the most likely action (default)")
    how.add_argument("--stochastic", action="store_true", help="sample actions, as in training")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--record", action="store_true", help="write an MP4 to the run's videos/; needs no display")
    parser.add_argument("--render", action="store_true", help="show the policy in a window")
    parser.add_argument("--video-length", metavar="STEPS", help="env steps to show (default: one episode)", **given)
    parser.add_argument("--analyze-value", action="store_true", help="report how accurate the critic is, in report/")
    parser.add_argument("--analyze-policy", action="store_true", help="report what the policy does, in report/")


def _add_options(parser: argparse.ArgumentParser, all_help: bool) -> None:
    """Add a flag for every option, in one group per section."""
    parser.add_argument("--help-all", action="help", help="show every option and exit")
    for section, cls in SECTIONS.items():
        group = parser.add_argument_group(section, cls.__doc__)
        for option in (*all_options().values(), *env_keywords().values()):
            if option.section == section:
                _add_flag(group, option, is_shown=all_help or option.name in _COMMON_OPTIONS)
        if not all_help and not any(action.help is not argparse.SUPPRESS for action in group._group_actions):
            group.title = group.description = None


def _add_flag(group: Any, option: Option, *, is_shown: bool) -> None:
    flag, *aliases = ["--" + name.replace("_", "-") for name in (option.name, *option.aliases)]
    default = " ".join(map(str, option.default)) if isinstance(option.default, list) else option.default
    also = f" Also {', '.join(aliases)}." if aliases else ""
    suited = ", or what suits the env" if option.name in suited_options() else ""
    text = f"{option.help}{also} (default: {default}{suited})".replace("%", "%%")
    common: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS}
    hidden = common | {"help": argparse.SUPPRESS}
    extra: dict[str, Any] = {"metavar": _metavar(option)}
    if isinstance(option.default, bool):
        extra |= {"nargs": "?", "const": "True"}
        negated = [f"--no-{name[2:]}" for name in (flag, *aliases)]
        group.add_argument(*negated, action="store_const", const="False", **hidden)
    elif option.is_list:
        extra |= {"nargs": "+", "action": "extend"} if option.part else {"nargs": "+"}
    group.add_argument(flag, **(common | {"help": text} if is_shown else hidden), **extra)
    if aliases:
        group.add_argument(*aliases, **hidden, **extra)


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    if option.is_list and (option.part or option.type == list[str]):
        return "NAME"
    if option.name in _NAMED_METAVARS:
        return _NAMED_METAVARS[option.name]
    if option.is_list:
        return _METAVARS[list]
    return _METAVARS.get(type(option.default)) or option.name.split("_")[-1].upper()


def _with_dashes(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else argument


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given as flags, parsed; errors name the flag."""
    known = all_options() | env_keywords()
    given = {name: value for name, value in vars(arguments).items() if name in known}
    return {name: known[name].parse(value, source=known[name].flag) for name, value in given.items()}


def _bench(arguments: argparse.Namespace) -> int:
    from proxima.config import load_config
    from proxima.machine import keep_freed_memory
    from proxima.training.bench import bench

    keep_freed_memory()
    _raise_on_interrupt()
    if not 0 < arguments.seconds < math.inf:
        raise UsageError(f"--seconds is {arguments.seconds:g}, but it must be positive and finite.")
    print(bench(load_config(arguments.config, _overrides(arguments)), seconds=arguments.seconds).text())
    return 0


def _train(arguments: argparse.Namespace) -> int:
    overrides = _overrides(arguments)  # errors in flags come before the slow imports
    from proxima.machine import keep_freed_memory
    from proxima.text import number
    from proxima.track.progress import log_handler, make_console
    from proxima.training.distributed import this_rank
    from proxima.training.train import train

    keep_freed_memory()
    console = make_console()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[log_handler(console)])
    result = train(arguments.config, resume_from=arguments.resume_from, console=console, **overrides)
    if result.config.track.quiet:
        return 0
    # With the path of the virtual environment if it is not active, so that the lines can be pasted.
    folder = "" if shutil.which("proxima") else f"{os.path.relpath(Path(sys.executable).parent)}/"
    run_dir = shlex.quote(str(result.run_dir))
    print(f"run folder   {result.run_dir}")
    print(f"final return {number(result.episode_return)} (mean of the last 100 training episodes)")
    if result.checkpoint is not None:
        print(f"evaluate     {folder}proxima evaluate {shlex.quote(str(result.checkpoint))}")
    if result.checkpoint is not None and result.config.checkpoint.save_optimizer:
        command = f"{folder}proxima" if not (start := this_rank().launcher) else f"{folder}{start}proxima"
        print(f"resume       {command} resume {run_dir} --total-timesteps {2 * result.global_step}")
    if result.config.track.tensorboard:
        print(f"TensorBoard  {folder}tensorboard --logdir {shlex.quote(str(result.run_dir.parent))}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from proxima.evaluation.beside import evaluate_beside
    from proxima.evaluation.episodes import evaluate
    from proxima.evaluation.video import record_checkpoint, watch_checkpoint
    from proxima.machine import stdout_to_stderr
    from proxima.runs import checkpoint

    _raise_on_interrupt()
    chosen = {"deterministic": not arguments.stochastic, **_overrides(arguments)}
    length = chosen.pop("video_length", None)
    path = checkpoint.find(arguments.path, best=arguments.best)
    if arguments.episodes < 1:
        raise UsageError(f"--episodes is {arguments.episodes}, but it must be >= 1.")
    if length is not None and not (arguments.record or arguments.render):
        raise UsageError(f"--video-length is {length}, but there is no video: add --record or --render.")
    if arguments.beside is not None and (arguments.analyze_value or arguments.analyze_policy):
        raise UsageError("--beside compares two policies, and an analysis is of one: leave one of them out.")
    if arguments.render:
        watch_checkpoint(path, length=length, **chosen)
    if arguments.record:
        with stdout_to_stderr(arguments.json):
            video = record_checkpoint(path, length=length, **chosen)
        print(f"video {video}", file=sys.stderr if arguments.json else sys.stdout, flush=True)
    analyses = {"value": arguments.analyze_value, "policy": arguments.analyze_policy}
    if arguments.beside is not None:
        with stdout_to_stderr(arguments.json):
            pair = evaluate_beside(path, arguments.beside, episodes=arguments.episodes, **chosen)
        print(json.dumps(pair.to_dict()) if arguments.json else pair.text())
        return 0
    with stdout_to_stderr(arguments.json):
        evaluation = evaluate(path, episodes=arguments.episodes, trace=any(analyses.values()), **chosen)
    print(json.dumps(evaluation.to_dict()) if arguments.json else evaluation.text())
    if any(analyses.values()):
        from proxima.evaluation.report import write_report

        page, lines = write_report(evaluation, **analyses)
        print("\n".join([*lines, f"report {page}"]), file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from proxima.evaluation.export import export, signature
    from proxima.evaluation.policy import load_policy
    from proxima.runs import checkpoint

    _raise_on_interrupt()
    folder = checkpoint.find(arguments.path, best=arguments.best)
    print(f"exported  {export(folder, format=arguments.format, out=arguments.out)}")
    print(signature(folder))
    hold = load_policy(folder).hold
    if hold.high > 1:
        steps = hold.low if hold.low == hold.high else f"{hold.low} to {hold.high}"
        print(f"hold      {steps} env steps per action, as in training")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from proxima.report.compare import sentences, table, write_comparison

    _raise_on_interrupt()

    page, markdown, comparison = write_comparison(arguments.runs, out=arguments.out, threshold=arguments.threshold)
    if arguments.markdown:
        print(markdown, end="")
        return 0
    lines = table(comparison)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  ".join([name.ljust(widths[0]), *padded]))
    print("\n".join([*sentences(comparison), f"page {page}"]))
    return 0


def _envs(arguments: argparse.Namespace) -> int:
    from proxima.envs.make import list_envs

    rows = [row for row in list_envs() if arguments.filter.lower() in row.id.lower()]
    if not rows:
        raise UsageError(f"no env id contains {arguments.filter!r}: `proxima envs` lists all of them.")
    width = max(len(row.id) for row in rows)
    print(f"{'id':<{width}}  {'--vec-env-mode':<18}  status")
    for row in rows:
        print(f"{row.id:<{width}}  {', '.join(row.backends):<18}  {row.status}")
    return 0


def _presets(arguments: argparse.Namespace) -> int:
    from proxima.config.presets import all_presets

    presets = all_presets()
    if arguments.action is None:
        width = max(map(len, presets))
        for name, preset in presets.items():
            print(f"{name:<{width}}  {preset.algorithm}  {', '.join(preset.envs) or '(by name)'}: {preset.reaches}")
        return 0
    if arguments.name not in presets:
        what = "give its name" if arguments.name is None else f"there is no preset {arguments.name!r}"
        raise UsageError(f"{what}; `proxima presets` lists them.")
    print(presets[arguments.name].text, end="")
    return 0


def _completion(arguments: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(_parser(all_help=True), shell=arguments.shell))
    return 0

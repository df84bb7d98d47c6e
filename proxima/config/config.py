"""The config of a run: all options (`sections.py`), where they come from, and their consistency checks.

They come from a preset (`presets.py`), then a YAML file, then flags; `load_config` combines them. Options that none of
these set are filled in once the env is known (`defaults.py`). Parsing of single values is in `options.py`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from proxima.algorithms import find_algorithm
from proxima.config import sections
from proxima.config.env_file import FIXED_SETTINGS, MUSCLE_ENV, changed_settings, env_file_options
from proxima.config.nested import merged
from proxima.config.options import Option, nearest, options_of, shown
from proxima.config.presets import ABOUT, all_presets, packaged_file, preset_for
from proxima.config.yaml_files import read_yaml
from proxima.errors import UsageError
from proxima.own_parts import distrust, trust

DISTILL_USES = ("num_steps", "update_epochs", "bptt_length")
"""Options of PPO that distillation uses too."""
MAX_NAME_BYTES = 200
"""A checkpoint folder's name is up to 45 bytes longer, and file systems allow 255."""


@dataclass
class Config:
    """All options of a run, by section."""

    run: sections.RunOptions = field(default_factory=sections.RunOptions)
    env: sections.EnvOptions = field(default_factory=sections.EnvOptions)
    policy: sections.PolicyOptions = field(default_factory=sections.PolicyOptions)
    algorithm: sections.AlgorithmOptions = field(default_factory=sections.AlgorithmOptions)
    ppo: sections.PPOOptions = field(default_factory=sections.PPOOptions)
    dqn: sections.DQNOptions = field(default_factory=sections.DQNOptions)
    muscle: sections.MuscleOptions = field(default_factory=sections.MuscleOptions)
    distill: sections.DistillOptions = field(default_factory=sections.DistillOptions)
    optimizer: sections.OptimizerOptions = field(default_factory=sections.OptimizerOptions)
    normalize: sections.NormalizeOptions = field(default_factory=sections.NormalizeOptions)
    cluster: sections.ClusterOptions = field(default_factory=sections.ClusterOptions)
    checkpoint: sections.CheckpointOptions = field(default_factory=sections.CheckpointOptions)
    evaluation: sections.EvaluationOptions = field(default_factory=sections.EvaluationOptions)
    track: sections.TrackOptions = field(default_factory=sections.TrackOptions)
    given: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where each option that was set comes from: a file, a preset, `flags`, `checkpoint`. The others are defaults."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name or re.sub(r"[/:#<>()]+", "-", self.env.env.removeprefix("__main__:")).strip("-")

    @property
    def rollout_size(self) -> int:
        """Samples per rollout: policy steps of all envs."""
        return self.env.num_envs * self.ppo.num_steps

    @property
    def num_iterations(self) -> int:
        """Iterations of a run without held actions; the last one may go beyond total_timesteps."""
        return -(-self.run.total_timesteps // self.rollout_size)

    @property
    def discount(self) -> float:
        """Discount per env step within a held action: gamma, or 1 without `smdp`."""
        return self.algorithm.gamma if self.algorithm.smdp else 1.0

    @property
    def is_recurrent(self) -> bool:
        """Whether the policy has recurrent layers."""
        return self.policy.rnn != "none"

    @property
    def sequence_length(self) -> int:
        """Steps per training sequence: 1 unless the policy is recurrent."""
        return 1 if not self.is_recurrent else min(self.ppo.bptt_length, self.ppo.num_steps)

    @property
    def num_sequences(self) -> int:
        """Training sequences per rollout: its samples, unless the policy is recurrent."""
        return self.env.num_envs * -(-self.ppo.num_steps // self.sequence_length)

    @property
    def num_minibatches(self) -> int:
        """Minibatches per epoch, which contain every sequence once; their sizes differ by at most one."""
        return -(-self.num_sequences // self.algorithm.minibatch_size)

    @property
    def num_updates(self) -> int:
        """Optimizer steps per epoch."""
        return -(-self.num_minibatches // self.optimizer.gradient_accumulation)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Nested dicts: sections, options."""
        return {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}

    def to_yaml(self) -> str:
        """The options as a YAML file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def flat(self) -> dict[str, Any]:
        """Every option by its name."""
        return {name: value for section in self.to_dict().values() for name, value in section.items()}

    def set_options(self) -> dict[str, Any]:
        """The options that are not left to their defaults."""
        return {name: value for name, value in self.flat().items() if name in self.given}

    def validate(self) -> None:
        """Raise a UsageError if options contradict each other, as far as that does not depend on the env."""
        policy = self.policy
        if len(policy.min_std) not in (1, 2):
            raise UsageError(
                f"min_std has {len(policy.min_std)} numbers, but it must be a lower bound, or those at the start and "
                "at the end of the run."
            )
        highest = max(policy.min_std)
        if not policy.min_std[0] <= policy.initial_std <= policy.max_std or highest > policy.max_std:
            raise UsageError(
                f"initial_std is {policy.initial_std:g}, but it must lie between min_std {highest:g} "
                f"and max_std {policy.max_std:g}."
            )
        if policy.std_mode == "state" and policy.max_std in policy.min_std:
            raise UsageError(f"min_std and max_std are both {policy.max_std:g}: for a fixed std use std_mode fixed.")
        if self.name in ("", ".", "..") or "/" in self.name or "\0" in self.name:
            raise UsageError(f"name is {self.name!r}, but it must be usable as one folder's name, without '/'.")
        if (size := len(self.name.encode())) > MAX_NAME_BYTES:
            raise UsageError(
                f"name has {size} bytes, but at most {MAX_NAME_BYTES} fit into a checkpoint folder's name: shorten it."
            )
        if self.cluster.overlap and not self.cluster.rollout_workers:
            raise UsageError("overlap is set, but the envs are in this process: give rollout_workers.")
        if (decay := self.optimizer.weight_decay) and self.optimizer.optimizer == "adam":
            raise UsageError(f"weight_decay is {decay:g}, but optimizer adam has none: use optimizer adamw.")

    def validate_algorithm(self) -> list[str]:
        """The same for the algorithm's options, once all are set; returns notices about surprising consequences."""
        own: list[str] = getattr(self, f"_validate_{find_algorithm(self.algorithm.algorithm).section}")()
        return own

    def _validate_ppo(self) -> list[str]:
        notices = [] if self.algorithm.algorithm == "PPO+muscle" else self._unused("muscle")
        if self.ppo.symmetry != "loss" and self.ppo.symmetry_coef != sections.PPOOptions.symmetry_coef:
            notices.append(f"symmetry_coef has no effect with symmetry {self.ppo.symmetry}: set symmetry to loss.")
        return self._unused("dqn") + notices + self._unused("distill") + self._without_recurrence()

    def _without_recurrence(self) -> list[str]:
        """A notice about options of recurrent layers, where there are none."""
        given = (self.policy.rnn_size, self.ppo.bptt_length)
        if not self.is_recurrent and given != (sections.PolicyOptions.rnn_size, sections.PPOOptions.bptt_length):
            return ["rnn_size and bptt_length have no effect with rnn none: set rnn to gru or lstm."]
        return []

    def _validate_distill(self) -> list[str]:
        distill, policy = self.distill, self.policy
        if distill.teacher is None:
            raise UsageError("algorithm distillation needs a teacher: give --teacher its checkpoint or run folder.")
        if len(distill.teacher_share) not in (1, 2):
            raise UsageError(
                f"teacher_share has {len(distill.teacher_share)} numbers, but it must be a probability, or those at "
                "the start and at the end of the run."
            )
        if policy.std_mode == "state" or policy.distribution == "beta":
            raise UsageError(
                f"std_mode is {policy.std_mode} and distribution {policy.distribution}, but distillation learns the "
                "mean action and leaves the std alone: use std_mode learned or fixed and a Gaussian distribution."
            )
        if self.optimizer.lr_schedule == "adaptive":
            raise UsageError(
                "lr_schedule is adaptive, but distillation has no KL to follow: use constant, linear or cosine."
            )
        unused = self._unused("dqn") + self._unused("muscle") + self._unused("ppo", but=DISTILL_USES)
        return unused + self._without_recurrence()

    def _validate_dqn(self) -> list[str]:
        dqn, optimizer, envs = self.dqn, self.optimizer, self.env.num_envs
        reachable = (dqn.buffer_size // envs - dqn.return_steps + 1) * envs
        if dqn.learning_starts > reachable:
            raise UsageError(
                f"learning_starts is {dqn.learning_starts}, but a replay buffer with buffer_size {dqn.buffer_size} and "
                f"{envs} envs never has more than {max(0, reachable)} transitions to sample: raise buffer_size."
            )
        if self.policy.rnn != "none":
            raise UsageError(f"rnn is {self.policy.rnn}, but DQN has no recurrent policy: use rnn none or PPO.")
        if optimizer.lr_schedule == "adaptive":
            raise UsageError("lr_schedule is adaptive, but DQN has no KL to follow: use constant, linear or cosine.")
        if optimizer.gradient_accumulation > 1 or optimizer.precision == "fp16":
            raise UsageError(
                f"gradient_accumulation is {optimizer.gradient_accumulation} and precision {optimizer.precision}, but "
                "DQN supports neither accumulation nor fp16: use 1 and fp32 or bf16."
            )
        notices = self._unused("ppo") + self._unused("muscle") + self._unused("distill")
        if dqn.learning_starts >= self.run.total_timesteps:
            notices.append(
                f"Nothing will be learned: learning_starts is {dqn.learning_starts:,}, and the run has only "
                f"{self.run.total_timesteps:,} steps."
            )
        return notices

    def _unused(self, section: str, *, but: Sequence[str] = ()) -> list[str]:
        """A notice about options of another algorithm's section that were changed from their defaults."""
        default, values = vars(SECTIONS[section]()), vars(getattr(self, section))
        names = [name for name, value in values.items() if value != default[name] and name not in but]
        return [f"These options have no effect with {self.algorithm.algorithm}: {', '.join(names)}."] if names else []


SECTIONS: dict[str, type] = {name: type(section) for name, section in vars(Config()).items() if name != "given"}
"""The class of every section by its name in YAML."""


@cache
def all_options() -> dict[str, Option]:
    """Every option by its canonical name."""
    return {opt.name: opt for section, cls in SECTIONS.items() for opt in options_of(section, cls)}


@cache
def env_keywords() -> dict[str, Option]:
    """Env keyword arguments that are accepted like options, by name; they are stored in `env_kwargs`."""
    return {opt.name: opt for opt in options_of("env", sections.EnvKeywords)}


@cache
def spellings() -> dict[str, Option]:
    """Every option and env keyword by its name and aliases, with underscores."""
    known = [*all_options().values(), *env_keywords().values()]
    return {alias: opt for opt in known for alias in opt.aliases} | {opt.name: opt for opt in known}


def find_option(name: str, *, source: str) -> Option:
    """The option with this name or alias, with dashes or underscores; otherwise an error with the most similar name."""
    key = name.replace("-", "_")
    if key not in spellings():
        where = f"{source}: " if source else ""
        raise UsageError(f"{where}there is no option {shown(name)}.{nearest(key, spellings())}")
    return spellings()[key]


def changes_at_resume(before: Config, after: Config) -> list[tuple[Option, Any, Any]]:
    """Options that differ, with both values, except those that a resume may change silently."""
    free = [name for name, opt in env_keywords().items() if opt.resume == "free"]
    found = []
    for opt in all_options().values():
        old, new = (getattr(getattr(config, opt.section), opt.name) for config in (before, after))
        is_same = _without(old, free) == _without(new, free) if opt.name == "env_kwargs" else old == new
        if opt.name == "env_kwargs" and after.env.env_file is not None:
            found += [
                (dataclasses.replace(opt, name=name, resume="fixed" if name in FIXED_SETTINGS else "reported"), *values)
                for name, *values in changed_settings(old, new)
            ]
        elif opt.resume != "free" and not is_same:
            found.append((opt, old, new))
    return found


def compared_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that affect what is learned; those unknown to this version are included."""
    incidental = [name for name, opt in env_keywords().items() if not opt.compared]
    return {
        name: _without(value, incidental) if name == "env_kwargs" else value
        for name, value in values.items()
        if name not in spellings() or spellings()[name].compared
    }


def _without(mapping: Any, names: Sequence[str]) -> Any:
    """A mapping without these keys; anything else (from a file edited by hand) is returned unchanged."""
    return {k: v for k, v in mapping.items() if k not in names} if isinstance(mapping, Mapping) else mapping


def load_config(
    path: str | Path | None = None, overrides: Mapping[str, Any] | None = None, *, base: Config | None = None
) -> Config:
    """A preset's options, then the YAML file's, then `overrides` by name or alias; ranges are checked.

    The preset is the one that is named, or without a file the one for the env. A `base`, which a resume has, takes the
    place of the preset.
    """
    flags = _parsed(overrides or {}, source="")
    file = {} if path is None else _parsed(_read_config(Path(path)), source=str(path))
    if base is None:
        config, layers = Config(), _preset_layer(file | flags, wish="auto" if path is None else "none")
    elif "preset" in flags:
        raise UsageError("preset is for a new run: a resume has the options of its checkpoint; give single options.")
    else:
        config, layers = base, {}
    given = {**next(iter(layers.values()), {}), **file, **flags}
    if env_file := given.get("env_file"):
        if given.get("env", MUSCLE_ENV) != MUSCLE_ENV:
            raise UsageError(f"env is {given['env']} and env_file is {env_file}: give one of them.")
        layers |= {env_file: env_file_options(env_file, given.get("env_kwargs", {}))}
        file, flags = (
            {name: value for name, value in values.items() if name not in ("env_kwargs", "env_file")}
            for values in (file, flags)
        )
    trust([value for values in (file, flags) for name, value in values.items() if spellings()[name].part])
    for source, values in {**layers, str(path): file, "flags": flags}.items():
        _assign(config, {name: value for name, value in values.items() if name != "preset"}, source=source)
    if base is None:
        config.distill.teacher_settings = {}  # of a saved config: a new run reads its teacher again
        config.given.pop("teacher_settings", None)
        config.run.preset = next((name for name in layers if name in all_presets()), "none")
    return config


def _preset_layer(values: Mapping[str, Any], *, wish: str) -> dict[str, dict[str, Any]]:
    """The options of the preset that the others ask for or that fits their env, by its name; empty for none."""
    name = values.get("preset", wish)
    env = values.get("env", sections.EnvOptions.env)
    algorithm = values.get("algorithm", sections.AlgorithmOptions.algorithm)
    if "env_file" in values and values.get("preset", "auto") == "auto":
        name = _muscle_preset(values.get("muscle_batch_size"))
    preset = preset_for(env, algorithm) if name == "auto" else all_presets().get(name)
    if preset is None:
        if name in ("auto", "none"):
            return {}
        raise UsageError(
            f"there is no preset {shown(name)}; `proxima presets` lists them.{nearest(name, all_presets())}"
        )
    options = _parsed(_read_config(preset.path), source=str(preset.path))
    if options.get("rnn", "none") == "none" and values.get("rnn", "none") != "none":
        options.pop("minibatch_size", None)  # it counts samples there, sequences here
    return {preset.name: options}


def _muscle_preset(batch_size: int | None) -> str:
    """The preset of muscle control with this muscle_batch_size; the small one if there is none."""
    return {64: "ppo_mini", 1024: "ppo_medium_pc", 4096: "ppo_large_pc"}.get(batch_size or 0, "ppo_small_pc")


def config_from_dict(content: Mapping[str, Mapping[str, Any]], *, source: str) -> Config:
    """The config that `Config.to_dict` described."""
    config = Config()
    for values in content.values():
        _assign(config, _parsed(values, source=source), source="checkpoint")
    distrust([getattr(getattr(config, opt.section), opt.name) for opt in all_options().values() if opt.part])
    return config


def _parsed(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Options by their canonical name; one that is given in two spellings is an error, since either could be meant."""
    spelled: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, value in values.items():
        opt = find_option(str(name), source=source)
        if opt.name in spelled:
            where = f"{source}: " if source else ""
            raise UsageError(f"{where}{spelled[opt.name]} and {name} are the same option: give one of them.")
        spelled[opt.name] = str(name)
        found[opt.name] = opt.parse(value, source=source)
    return found


def _assign(config: Config, values: Mapping[str, Any], *, source: str) -> None:
    """Set options by their canonical name."""
    keywords = {name: value for name, value in values.items() if name in env_keywords()}
    is_same_env = values.get("env", config.env.env) == config.env.env
    for name, value in values.items():
        if name not in keywords:
            if name == "env_kwargs" and is_same_env:  # single settings of the preset's env are changed
                value = merged(config.env.env_kwargs, value)
            setattr(getattr(config, all_options()[name].section), name, value)
            config.given[name] = source
    if keywords:
        config.given["env_kwargs"] = source
        kept = {name: value for name, value in config.env.env_kwargs.items() if name not in keywords}
        config.env.env_kwargs = kept | {name: value for name, value in keywords.items() if value is not None}


def _is_used_in(section: str, opt: Option) -> bool:
    """Whether an option of another section may be given in an algorithm's own one, because the algorithm uses it."""
    if opt.section == "algorithm":
        return section in ("ppo", "dqn", "distill")
    return section == "distill" and opt.name in DISTILL_USES


def _read_config(path: Path) -> dict[str, Any]:
    """The file's options by name: a top-level key is a section or an option."""
    if not path.exists() and (packaged := packaged_file(path)) is not None:
        path = packaged
    if not path.exists():
        folder = path.parent if path.parent.is_dir() else Path()
        others = [str(folder / other.name) for other in sorted(folder.glob("*.yaml"))]
        hint = nearest(str(path), [*others, *all_presets()])
        raise UsageError(f"config file {path} does not exist, nor a preset of this name.{hint}")
    content = read_yaml(path, what="config file")
    if not isinstance(content, dict):
        raise UsageError(f"config file {path} must hold options as 'name: value' lines, with or without sections.")
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key == ABOUT:
            continue
        # `env: HalfCheetah-v5` is the option env, `env: {num_envs: 8}` the section.
        if key in SECTIONS and isinstance(value, dict):
            for name, inner in value.items():
                opt = find_option(str(name), source=str(path))
                if opt.section != key and not _is_used_in(key, opt):
                    raise UsageError(f"{path}: option {name!r} belongs in section {opt.section!r}, not {key!r}.")
                flat[str(name)] = inner
        elif key in SECTIONS and value is None:
            continue
        elif key in SECTIONS and key not in spellings():
            raise UsageError(f"{path}: {key} is a section and needs 'name: value' lines under it, not {shown(value)}.")
        else:
            flat[str(key)] = value
    return flat

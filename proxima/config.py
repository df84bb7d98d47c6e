"""Every option of Proxima: what it means, its default, its range, and how the options must agree with each other.

Options come from defaults, then a YAML file, then flags; `load_config` puts them together. The reading of text is in
`options.py`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from proxima.errors import UsageError
from proxima.options import Option, nearest, option, options_of


@dataclass
class RunOptions:
    """The run: how long, where, on what."""

    name: str | None = option(None)
    """Name of the run; its folders are runs/NAME/DATE_TIME. None takes the env id."""
    total_timesteps: int = option(1_000_000, at_least=1)
    """Env steps to train for; the last iteration is always whole."""
    seed: int = option(1, at_least=0, below=2**31)
    """Seeds the networks, the actions, the minibatches, and env i with seed + i."""
    device: str = option("auto")
    """cpu, cuda, cuda:1, ... or auto: a GPU, if there is one, for images and for envs that live there; else the CPU."""
    num_threads: int | None = option(None, at_least=1)
    """Threads of the batch physics and of the learner. None: all cores, and what the minibatches are worth."""
    compile: Literal["auto", "on", "off"] = option("auto")
    """Compile the minibatch step, and acting. auto does where the run is long enough to earn the compilation back."""
    runs_dir: str = option("runs")
    """Folder under which runs are written."""


@dataclass
class EnvOptions:
    """The environments and how they are run in parallel."""

    env: str = option("HalfCheetah-v5", aliases=["env_id"])
    """Gymnasium id; `proxima envs` lists them."""
    env_kwargs: dict[str, Any] = option({})
    """Keyword arguments of the env, such as '{forward_reward_weight: 2.0}'."""
    num_envs: int = option(8, aliases=["n_envs"], at_least=1, at_most=1_000_000)
    """Environments that run in parallel."""
    vec_env_mode: Literal["auto", "batch", "sync", "async"] = option("auto")
    """batch: native physics threads; sync: this process; async: worker processes; auto: the best of them."""
    num_workers: int | None = option(None, at_least=1)
    """Worker processes of async, None for one a core."""
    max_episode_steps: int | None = option(None, at_least=1)
    """Time limit of an episode in env steps, None for the env's own."""
    spread_episodes: bool = option(True)
    """Cut the first episode of each env at a different time, so that the episodes of a batch are not all in phase."""
    action_hold_seconds: float = option(0.0, at_least=0)
    """Hold every action for so many seconds of the env's time, rounded to env steps; 0 decides at every step."""
    action_hold_start_seconds: float | None = option(None, at_least=0)
    """In place of action_hold_seconds: the hold at the start of a run whose hold changes."""
    action_hold_end_seconds: float | None = option(None, at_least=0)
    """And the hold at its end."""
    action_hold_anneal: bool = option(True)
    """Go from the one to the other, linearly in env steps; False stays at the start, for comparison."""
    action_hold_fraction: float = option(1.0, above=0, at_most=1)
    """Share of the run after which the end is reached."""
    action_hold_random: list[float] | None = option(None, at_least=0)
    """LOW HIGH: hold each action for a random time within these seconds, drawn for every decision and env."""

    @property
    def holds_actions(self) -> bool:
        """Whether any option asks for a hold; in env steps it may still come to one."""
        given = (self.action_hold_start_seconds, self.action_hold_random)
        return bool(self.action_hold_seconds) or any(value is not None for value in given)


@dataclass
class PolicyOptions:
    """The networks and the action distribution."""

    hidden_sizes: list[int] = option([64, 64], at_least=1)
    """Widths of the hidden layers; with a memory, of the action MLP and of the value MLP on top of it."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = option("tanh")
    """Nonlinearity between the layers."""
    share_trunk: Literal["auto", "on", "off"] = option("auto")
    """One trunk (encoders, memory) for actor and critic, or one each. auto: shared for images and with a memory."""
    memory: Literal["none", "gru", "lstm"] = option("none")
    """Recurrent layers between the encoders and the hidden layers."""
    memory_size: int = option(256, at_least=1)
    """Width of the memory."""
    memory_layers: int = option(1, at_least=1)
    """Layers of the memory."""
    encoders: dict[str, Any] = option({})
    """What becomes of a key of the observation, such as '{scandots: {widths: [128, 32]}, mass: {use: critic}}'."""
    cnn_features: int = option(256, at_least=1)
    """Features that the convolutional encoder makes of an image key."""
    orthogonal_init: bool = option(True)
    """Orthogonal weights with gains sqrt(2), 0.01 for the action head and 1 for the value head."""
    distribution: Literal["auto", "gaussian", "tanh_gaussian", "beta"] = option("auto")
    """Distribution for Box actions (auto: gaussian). Discrete kinds follow from the action space."""
    std_mode: Literal["learned", "fixed", "state"] = option("learned")
    """Standard deviation of a Gaussian: one learned vector, fixed, or computed from the observation."""
    initial_std: float = option(1.0, above=0)
    """Standard deviation at the start (for good where it is fixed), in units of the scaled action."""
    min_std: float = option(0.01, above=0)
    """Smallest standard deviation that the policy may reach."""
    max_std: float = option(4.0, above=0)
    """Largest standard deviation that the policy may reach."""
    scale_actions: bool = option(True)
    """Let -1..1 of a Gaussian policy span the bounds of the action space; it is clipped to the bounds either way."""


@dataclass
class PPOOptions:
    """The algorithm."""

    num_steps: int = option(2048, aliases=["n_steps"], at_least=1, at_most=10_000_000)
    """Decisions per env and iteration: env steps, unless actions are held."""
    update_epochs: int = option(10, aliases=["epochs", "n_epochs"], at_least=1)
    """Passes over the batch in each iteration."""
    minibatch_size: int = option(64, aliases=["mini_batch_size", "batch_size"], at_least=1)
    """Samples in a minibatch; with a memory, sequences."""
    bptt_length: int = option(24, at_least=1)
    """With a memory: steps of a sequence, as far as gradients go back in time."""
    gamma: float = option(0.99, at_least=0, at_most=1)
    """Discount factor of one env step."""
    smdp: bool = option(True)
    """Discount held actions by the env steps they took; False takes gamma per decision and plain sums of rewards."""
    gae_lambda: float = option(0.95, at_least=0, at_most=1)
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the returns."""
    clip_range: float = option(0.2, aliases=["clip_epsilon", "clip_coef"], above=0)
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_value_loss: bool = option(False, aliases=["value_clipping", "clip_vloss"])
    """Also limit how far the value moves from its old prediction, by clip_range."""
    value_loss_coef: float = option(0.5, aliases=["vf_coef"], at_least=0)
    """Weight of the value loss (half the mean squared error)."""
    entropy_coef: float = option(0.01, aliases=["ent_coef"], at_least=0)
    """Weight of the entropy bonus."""
    normalize_advantage: Literal["minibatch", "batch", "off"] = option("minibatch")
    """Scale advantages to mean 0 and deviation 1: in each minibatch, once over the batch, or not at all."""
    recompute_advantage: bool = option(False)
    """Recompute values and advantages with the current critic before every epoch."""
    target_kl: float | None = option(None, above=0)
    """End the update after an epoch whose approximate KL from the old policy exceeds this."""


@dataclass
class OptimizerOptions:
    """The optimizer and its learning rate."""

    optimizer: Literal["adam", "adamw"] = option("adam")
    """adam, or adamw with decoupled weight decay."""
    learning_rate: float = option(3e-4, aliases=["lr"], above=0)
    """Learning rate at the start."""
    lr_schedule: Literal["constant", "linear", "cosine", "adaptive"] = option("constant")
    """constant; linear to 0; cosine to 10 %; or adaptive: follow the measured KL towards desired_kl."""
    desired_kl: float = option(0.01, above=0)
    """KL an epoch that the adaptive learning rate aims at."""
    weight_decay: float = option(0.0, at_least=0)
    """Weight decay; only adamw has one."""
    adam_eps: float = option(1e-5, above=0)
    """Epsilon of Adam."""
    max_grad_norm: float | None = option(0.5, above=0)
    """Largest norm of the gradient; None does not clip."""
    gradient_accumulation: int = option(1, at_least=1)
    """Minibatches whose gradients are averaged into one optimizer step."""
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32")
    """Arithmetic of the networks in the update; bf16 and fp16 (with loss scaling) need a GPU."""


@dataclass
class NormalizeOptions:
    """Running normalisation; its statistics travel with the policy."""

    normalize_obs: bool = option(True)
    """Scale observations (images aside) by their running mean and deviation."""
    clip_obs: float = option(10.0, above=0)
    """Largest absolute normalised observation."""
    normalize_reward: bool = option(True)
    """Divide rewards by the running deviation of the discounted return."""
    clip_reward: float = option(10.0, above=0)
    """Largest absolute normalised reward."""


@dataclass
class CheckpointOptions:
    """What is kept on disk besides the metrics."""

    save_checkpoint: bool = option(True)
    """Write checkpoints: at the end, at Ctrl-C or SIGTERM, and as often as the next two say."""
    checkpoint_freq: int = option(0, at_least=0)
    """Env steps between checkpoints; 0 writes none of these."""
    checkpoint_minutes: float = option(10.0, at_least=0)
    """Minutes between checkpoints; 0 writes none of these."""
    save_optimizer: bool = option(True)
    """Also save what a resume needs; without it a checkpoint serves inference only."""
    keep_checkpoints: int = option(3, at_least=1)
    """Newest checkpoints of a run that are kept; the one with the best return is kept as well."""
    auto_resume: bool = option(False)
    """Go on with the newest run of this name if there is one: what a job that may be preempted restarts with."""


@dataclass
class EvaluationOptions:
    """How the policy is looked at while it learns."""

    eval_every: int = option(0, at_least=0)
    """Env steps between evaluations on separate envs; 0 makes none. The checkpoint of the best is kept."""
    eval_episodes: int = option(10, at_least=1)
    """Deterministic episodes of an evaluation."""
    record_every: int = option(0, at_least=0)
    """Env steps between videos in the run's videos/; 0 makes none."""
    video_length: int | None = option(None, at_least=1)
    """Env steps of such a video. None: one episode."""


@dataclass
class TrackOptions:
    """What a run shows and writes."""

    tensorboard: bool = option(True)
    """Write TensorBoard events to the run's tb/ folder."""
    progress: bool = option(True)
    """Show a progress bar; without a terminal, a line now and then."""
    log_every: int = option(0, at_least=0)
    """Print the table of metrics every so many iterations; 0 prints it only at the end."""


@dataclass
class Config:
    """All options of a run, by section."""

    run: RunOptions = field(default_factory=RunOptions)
    env: EnvOptions = field(default_factory=EnvOptions)
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    ppo: PPOOptions = field(default_factory=PPOOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    normalize: NormalizeOptions = field(default_factory=NormalizeOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    track: TrackOptions = field(default_factory=TrackOptions)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name or self.env.env.replace("/", "-").replace(":", "-")

    @property
    def rollout_size(self) -> int:
        """Samples of one iteration, which are decisions."""
        return self.env.num_envs * self.ppo.num_steps

    @property
    def num_iterations(self) -> int:
        """Iterations of a run that holds no actions; the last is whole even where total_timesteps ends inside it."""
        return -(-self.run.total_timesteps // self.rollout_size)

    @property
    def sequence_length(self) -> int:
        """Steps that the learner takes as one: 1 without a memory."""
        return 1 if self.policy.memory == "none" else min(self.ppo.bptt_length, self.ppo.num_steps)

    @property
    def num_sequences(self) -> int:
        """Sequences of one iteration: its samples, without a memory."""
        return self.env.num_envs * -(-self.ppo.num_steps // self.sequence_length)

    @property
    def num_minibatches(self) -> int:
        """Minibatches of one epoch: as many as hold every sequence once, of sizes that differ by at most one."""
        return -(-self.num_sequences // self.ppo.minibatch_size)

    @property
    def num_updates(self) -> int:
        """Optimizer steps of one epoch."""
        return -(-self.num_minibatches // self.optimizer.gradient_accumulation)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain nested dicts, as in a YAML file."""
        return dataclasses.asdict(self)

    def flat(self) -> dict[str, Any]:
        """Every option by its name."""
        return {name: value for section in self.to_dict().values() for name, value in section.items()}

    def validate(self) -> list[str]:
        """Raise a UsageError where options contradict each other; return notices about what will be done."""
        ppo, policy, notices = self.ppo, self.policy, []
        size, minibatch = self.num_sequences, ppo.minibatch_size
        recurrent = policy.memory != "none"
        if not recurrent and (policy.memory_size, ppo.bptt_length) != (
            PolicyOptions.memory_size,
            PPOOptions.bptt_length,
        ):
            notices.append("memory_size and bptt_length have no effect without --memory gru or lstm.")
        what = "sequences" if recurrent else "samples"
        if minibatch > size:
            cut = f", cut into sequences of {self.sequence_length}" if recurrent else ""
            raise UsageError(
                f"minibatch_size is {minibatch}, but an iteration has only {size} {what} (num_envs "
                f"{self.env.num_envs} x num_steps {ppo.num_steps}{cut}): lower minibatch_size or raise num_steps."
            )
        if size % minibatch:
            notices.append(
                f"{size} {what} do not divide into minibatches of {minibatch}: "
                f"each epoch uses {self.num_minibatches} of {size // self.num_minibatches} to "
                f"{-(-size // self.num_minibatches)} {what}."
            )
        if self.optimizer.gradient_accumulation > self.num_minibatches:
            raise UsageError(
                f"gradient_accumulation is {self.optimizer.gradient_accumulation}, but an epoch has only "
                f"{self.num_minibatches} minibatches: lower it or minibatch_size."
            )
        if not policy.min_std <= policy.initial_std <= policy.max_std:
            raise UsageError(
                f"initial_std is {policy.initial_std:g}, but it must lie between min_std {policy.min_std:g} "
                f"and max_std {policy.max_std:g}."
            )
        if policy.std_mode == "state" and policy.min_std == policy.max_std:
            raise UsageError(
                f"min_std and max_std are both {policy.min_std:g}: for one deviation use --std-mode fixed."
            )
        if self.name in ("", ".", "..") or "/" in self.name or "\0" in self.name:
            raise UsageError(f"name is {self.name!r}, but it must be usable as one folder's name, without '/'.")
        if self.optimizer.weight_decay and self.optimizer.optimizer == "adam":
            raise UsageError("weight_decay is set, but optimizer adam has none: use --optimizer adamw.")
        if not policy.hidden_sizes:
            raise UsageError("hidden_sizes is empty: give at least one width, such as --hidden-sizes 64 64.")
        return notices


SECTIONS: dict[str, type] = {name: type(section) for name, section in vars(Config()).items()}
"""The class of every section, by its name in YAML."""


@cache
def all_options() -> dict[str, Option]:
    """Every option by its canonical name."""
    return {opt.name: opt for section, cls in SECTIONS.items() for opt in options_of(section, cls)}


@cache
def option_names() -> dict[str, str]:
    """Canonical name by every accepted spelling with underscores."""
    names = {alias: opt.name for opt in all_options().values() for alias in opt.aliases}
    return names | {name: name for name in all_options()}


def find_option(name: str, *, source: str) -> Option:
    """The option that `name` stands for, in any accepted spelling, or an error that names the nearest."""
    key = name.replace("-", "_")
    if key not in option_names():
        raise UsageError(f"{source}: there is no option {name!r}.{nearest(key, option_names())}")
    return all_options()[option_names()[key]]


def load_config(
    path: str | Path | None = None, overrides: Mapping[str, Any] | None = None, *, base: Config | None = None
) -> Config:
    """`base` or the defaults, then the YAML file, then `overrides` (flat, any spelling); ranges are checked."""
    config = Config() if base is None else base
    if path is not None:
        for name, value in _read_yaml(Path(path)).items():
            _assign(config, name, value, source=str(path))
    for name, value in (overrides or {}).items():
        _assign(config, name, value, source="--" + name.replace("_", "-"))
    return config


def config_from_dict(sections: Mapping[str, Mapping[str, Any]], *, source: str) -> Config:
    """The config that `Config.to_dict` described."""
    config = Config()
    for values in sections.values():
        for name, value in values.items():
            _assign(config, name, value, source=source)
    return config


def _assign(config: Config, name: str, value: Any, *, source: str) -> None:
    opt = find_option(name, source=source)
    setattr(getattr(config, opt.section), opt.name, opt.parse(value, source=source))


def _read_yaml(path: Path) -> dict[str, Any]:
    """The file's options, flattened: a top-level key is a section or an option."""
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        folder = path.parent if path.parent.is_dir() else Path()
        others = [str(folder / other.name) for other in sorted(folder.glob("*.yaml"))]
        raise UsageError(f"config file {path} does not exist.{nearest(str(path), others)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config file {path} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(
            f"config file {path} is not valid YAML{where}: {getattr(error, 'problem', None) or 'cannot be parsed'}."
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"config file {path} must hold options as 'name: value' lines, in sections or flat.")
    flat: dict[str, Any] = {}
    for key, value in content.items():
        # `env: HalfCheetah-v5` is the option env, `env: {num_envs: 8}` the section.
        if key in SECTIONS and isinstance(value, dict):
            for name, inner in value.items():
                opt = find_option(str(name), source=str(path))
                if opt.section != key:
                    raise UsageError(f"{path}: option {name!r} belongs in section {opt.section!r}, not {key!r}.")
                flat[str(name)] = inner
        elif key in SECTIONS and value is None:
            continue
        elif key in SECTIONS and key not in option_names():
            raise UsageError(f"{path}: {key} is a section and needs 'name: value' lines under it, not {value!r}.")
        else:
            flat[str(key)] = value
    return flat

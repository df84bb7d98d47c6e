"""Every option of Proxima, by section: what it means, its default and its range.

How the options must agree with each other, and how they are read from files and flags, is in `config.py`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from proxima.config.options import option

# `option` itself declares one that a resume may change, with a notice, and that comparisons look at.
fixed = partial(option, resume="fixed")
"""What the weights, the generators and the states of the envs belong to."""
bookkeeping = partial(option, resume="free", compared=False)
"""Where things are kept and shown, not what is learned."""


@dataclass
class RunOptions:
    """The run: how long, where, on what."""

    name: str | None = bookkeeping(None)
    """Name of the run; its folders are runs/NAME/DATE_TIME. None takes the env id."""
    preset: str = bookkeeping("auto")
    """Settings to start from, as `proxima presets` lists them: auto (those for the env, unless --config), none, NAME."""
    total_timesteps: int = option(1_000_000, at_least=1, at_most=10**15, resume="free")
    """Env steps to train for; the last iteration is always whole."""
    seed: int = fixed(1, at_least=0, below=2**31, compared=False)
    """Seeds the networks, the actions, the minibatches, and env i with seed + i."""
    device: str = option("auto", compared=False)
    """cpu, cuda, cuda:1, ... or auto: a GPU, if there is one, for images and for envs that live there; else the CPU."""
    num_threads: int | None = option(None, at_least=1, compared=False)
    """Threads of the batch physics and of the learner. None: all cores, and what the minibatches are worth."""
    compile: Literal["auto", "on", "off"] = option("auto")
    """Compile the minibatch step, and acting. auto does where the run is long enough to earn the compilation back."""
    runs_dir: str = bookkeeping("runs")
    """Folder under which runs are written."""


@dataclass
class EnvOptions:
    """The environments and how they are run in parallel."""

    env: str = fixed("HalfCheetah-v5", aliases=["env_id"])
    """Gymnasium id; `proxima envs` lists them."""
    env_kwargs: dict[str, Any] = fixed({})
    """Keyword arguments of the env, such as '{forward_reward_weight: 2.0}'."""
    num_envs: int = fixed(8, aliases=["n_envs"], at_least=1, at_most=1_000_000)
    """Environments that run in parallel."""
    vec_env_mode: Literal["auto", "batch", "sync", "async"] = option("auto")
    """batch: native physics threads; sync: this process; async: worker processes; auto: the best of them."""
    num_workers: int | None = option(None, at_least=1)
    """Worker processes of async, None for one a core."""
    max_episode_steps: int | None = option(None, at_least=1, below=2**31)
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
class EnvKeywords:
    """Keywords of single envs that can be given like options: `--rom FILE` for `--env-kwargs '{rom: FILE}'`."""

    rom: str | None = bookkeeping(None)
    """The game file of Super Mario Bros. None: $PROXIMA_MARIO_ROM, or an installed package that carries it."""


@dataclass
class PolicyOptions:
    """The networks and the action distribution."""

    hidden_sizes: list[int] = fixed([64, 64], at_least=1, at_most=65_536)
    """Widths of the hidden layers, [] for none. If recurrent: of the MLPs after the recurrent layers."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = fixed("tanh")
    """Nonlinearity between the layers."""
    share_trunk: Literal["auto", "on", "off"] = fixed("auto")
    """One trunk (encoders, recurrent layers) for actor and critic, or one each. auto: one for images or if recurrent."""
    rnn: Literal["none", "gru", "lstm"] = fixed("none", aliases=["memory"])
    """Recurrent layers between the encoders and the hidden layers."""
    rnn_size: int = fixed(256, aliases=["memory_size"], at_least=1, at_most=65_536)
    """Hidden units of each recurrent layer."""
    rnn_layers: int = fixed(1, aliases=["memory_layers"], at_least=1, at_most=16)
    """Number of recurrent layers."""
    encoders: dict[str, Any] = fixed({})
    """What becomes of a key of the observation, such as '{scandots: {widths: [128, 32]}, mass: {use: critic}}'."""
    cnn_features: int = fixed(256, at_least=1, at_most=65_536)
    """Features that the convolutional encoder makes of an image key."""
    orthogonal_init: bool = fixed(True)
    """Orthogonal weights with gains sqrt(2), 0.01 for the action head and 1 for the value head."""
    distribution: Literal["auto", "gaussian", "tanh_gaussian", "beta"] = fixed("auto")
    """Distribution for Box actions (auto: gaussian). Discrete kinds follow from the action space."""
    std_mode: Literal["learned", "fixed", "state"] = fixed("learned")
    """Standard deviation of a Gaussian: one learned vector, fixed, or computed from the observation."""
    initial_std: float = fixed(1.0, above=0)
    """Standard deviation at the start (for good where it is fixed), in units of the scaled action."""
    min_std: float = fixed(0.01, above=0)
    """Smallest standard deviation that the policy may reach."""
    max_std: float = fixed(4.0, above=0)
    """Largest standard deviation that the policy may reach."""
    scale_actions: bool = fixed(True)
    """Let -1..1 of a Gaussian policy span the bounds of the action space; it is clipped to the bounds either way."""


@dataclass
class AlgorithmOptions:
    """The algorithm, and what all of them have."""

    algorithm: Literal["PPO", "DQN"] = fixed("PPO")
    """PPO, or DQN for Discrete actions; each has a section of its own."""
    gamma: float = option(0.99, at_least=0, at_most=1)
    """Discount factor of one env step."""
    smdp: bool = option(True)
    """Discount held actions by the env steps they took; False takes gamma per decision and plain sums of rewards."""
    minibatch_size: int = option(64, aliases=["mini_batch_size", "batch_size"], at_least=1)
    """Samples in a minibatch; of a recurrent policy, sequences."""


@dataclass
class PPOOptions:
    """Proximal policy optimisation."""

    num_steps: int = option(256, aliases=["n_steps"], at_least=1, at_most=10_000_000)
    """Decisions per env and iteration: env steps, unless actions are held."""
    update_epochs: int = option(10, aliases=["epochs", "n_epochs"], at_least=1)
    """Passes over the batch in each iteration."""
    bptt_length: int = option(24, at_least=1)
    """Truncated backpropagation through time: steps in a training sequence of a recurrent policy."""
    gae_lambda: float = option(0.95, at_least=0, at_most=1)
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the returns."""
    clip_range: float = option(0.2, aliases=["clip_epsilon", "clip_coef"], above=0)
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_value_loss: bool = option(False, aliases=["value_clipping", "clip_vloss"])
    """Also limit how far the value moves from its old prediction, by clip_range."""
    value_loss_coef: float = option(0.5, aliases=["vf_coef"], at_least=0)
    """Weight of the value loss (half the mean squared error)."""
    entropy_coef: float = option(0.0, aliases=["ent_coef"], at_least=0)
    """Weight of the entropy bonus."""
    normalize_advantage: Literal["minibatch", "batch", "off"] = option("minibatch")
    """Scale advantages to mean 0 and deviation 1: in each minibatch, once over the batch, or not at all."""
    recompute_advantage: bool = option(False)
    """Recompute values and advantages with the current critic before every epoch."""
    target_kl: float | None = option(None, above=0)
    """End the update after an epoch whose approximate KL from the old policy exceeds this."""


@dataclass
class DQNOptions:
    """Deep Q-learning."""

    buffer_size: int = option(100_000, at_least=1)
    """Decisions that the replay holds, over all envs; each frame of an image is stored once."""
    learning_starts: int = option(10_000, at_least=1)
    """Decisions in the replay before learning begins."""
    train_freq: int = option(4, at_least=1)
    """Decisions, over all envs, for each optimizer step."""
    target_update_every: int = option(10_000, aliases=["target_update_interval"], at_least=1)
    """Decisions between copies of the weights into the target network."""
    double_q: bool = option(True, aliases=["double_dqn"])
    """Let the online network choose the next action and the target network value it (van Hasselt et al. 2016)."""
    return_steps: int = option(1, aliases=["n_step"], at_least=1)
    """Rewards that are summed before the target network's value takes over."""
    exploration_start: float = option(1.0, aliases=["exploration_initial_eps"], at_least=0, at_most=1)
    """Share of random actions at the start."""
    exploration_end: float = option(0.05, aliases=["exploration_final_eps"], at_least=0, at_most=1)
    """And at the end."""
    exploration_fraction: float = option(0.1, above=0, at_most=1)
    """Share of the run after which the end is reached, linearly."""
    iteration_steps: int = option(1_000, at_least=1)
    """Decisions of an iteration, over all envs: from one line of metrics to the next."""


@dataclass
class OptimizerOptions:
    """The optimizer and its learning rate."""

    optimizer: Literal["adam", "adamw"] = option("adam")
    """adam, or adamw with decoupled weight decay."""
    learning_rate: float = option(3e-4, aliases=["lr"], above=0)
    """Learning rate at the start."""
    lr_schedule: Literal["constant", "linear", "cosine", "adaptive"] = option("linear")
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
    """Arithmetic of the networks in the update; bf16 needs a GPU or a CPU that has it, fp16 a GPU."""


@dataclass
class NormalizeOptions:
    """Running normalisation; its statistics travel with the policy."""

    normalize_obs: bool = fixed(True)
    """Scale observations (images aside) by their running mean and deviation."""
    clip_obs: float = option(10.0, above=0)
    """Largest absolute normalised observation."""
    normalize_reward: bool = option(True)
    """Divide rewards by the running deviation of the discounted return; DQN takes them as they are."""
    clip_reward: float = option(10.0, above=0)
    """Largest absolute normalised reward."""


@dataclass
class CheckpointOptions:
    """What is kept on disk besides the metrics."""

    save_checkpoint: bool = bookkeeping(True)
    """Write checkpoints: at the end, at Ctrl-C or SIGTERM, and as often as the next two say."""
    checkpoint_freq: int = bookkeeping(0, at_least=0)
    """Env steps between checkpoints; 0 writes none of these."""
    checkpoint_minutes: float = bookkeeping(10.0, at_least=0)
    """Minutes between checkpoints; 0 writes none of these."""
    save_optimizer: bool = bookkeeping(True)
    """Also save what a resume needs; without it a checkpoint serves inference only."""
    keep_checkpoints: int = bookkeeping(3, at_least=1)
    """Newest checkpoints of a run that are kept; the one with the best return is kept as well."""
    save_replay: bool = bookkeeping(False)
    """Also save DQN's replay, gigabytes perhaps: without it a resume fills a new one first, and is not exact."""
    auto_resume: bool = bookkeeping(False)
    """Go on with the run of this name that has the most steps, if there is one: for jobs that may be preempted."""


@dataclass
class EvaluationOptions:
    """How the policy is looked at while it learns."""

    eval_every: int = option(0, at_least=0, compared=False)
    """Env steps between evaluations on separate envs; 0 makes none. The checkpoint of the best is kept."""
    eval_episodes: int = option(10, at_least=1, compared=False)
    """Deterministic episodes of an evaluation."""
    record_every: int = option(0, at_least=0, compared=False)
    """Env steps between videos in the run's videos/; 0 makes none."""
    video_length: int | None = option(None, at_least=1, compared=False)
    """Env steps of such a video. None: one episode."""


@dataclass
class TrackOptions:
    """What a run shows and writes."""

    tensorboard: bool = bookkeeping(True)
    """Write TensorBoard events to the run's tb/ folder."""
    progress: bool = bookkeeping(True)
    """Show a progress bar; without a terminal, a line now and then."""
    log_every: int = bookkeeping(0, at_least=0)
    """Print the table of metrics every so many iterations; 0 prints it only at the end."""
    quiet: bool = bookkeeping(False)
    """Show warnings and errors only: no progress, no tables, no summary."""

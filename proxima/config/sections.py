"""Every option of Proxima, by section: what it means, its default and its range.

How the options must agree with each other, and how they are read from files and flags, is in `config.py`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from proxima.config.options import option

# A plain `option` may change at a resume, which is then reported, and counts as a difference in `proxima compare`.
fixed = partial(option, resume="fixed")
"""Cannot change at a resume: the weights, random generators or env states of the checkpoint depend on it."""
bookkeeping = partial(option, resume="free", compared=False)
"""Affects what is stored and shown, not what is learned."""


@dataclass
class RunOptions:
    """Name, length, seed and device of the run."""

    name: str | None = bookkeeping(None)
    """Name of the run, written to runs/NAME/DATE_TIME. None: the env id."""
    preset: str = bookkeeping("auto")
    """Settings to start from: a name (`proxima presets`), none, or auto: those for the env (unless --config)."""
    total_timesteps: int = option(1_000_000, at_least=1, at_most=10**15, resume="free")
    """Env steps to train for, over all envs; the last iteration is always completed."""
    seed: int = fixed(1, at_least=0, below=2**31, compared=False)
    """Random seed of the networks, actions and minibatches; env i is seeded with seed + i."""
    device: str = option("auto", compared=False)
    """cpu, cuda, cuda:1, ... auto: a GPU, if available, for image observations and GPU envs; otherwise the CPU."""
    num_threads: int | None = option(None, at_least=1, compared=False)
    """Threads of the batch physics and of the learner. None: as many as are of use, up to all cores."""
    compile: Literal["auto", "on", "off"] = option("auto")
    """Compile the minibatch update and the policy step. auto: only if the run is long enough to save time overall."""
    init_from: str | None = fixed(None)
    """Fine-tuning: start with the weights and normalisers of this checkpoint or run folder, as far as they fit."""
    runs_dir: str = bookkeeping("runs")
    """Folder that runs are written to."""


@dataclass
class EnvOptions:
    """The environments and how they are run in parallel."""

    env: str = fixed("HalfCheetah-v5", aliases=["env_id"], part=True)
    """Gymnasium id (`proxima envs` lists them), or module:function of your own, which makes an env or a vector env."""
    env_file: str | None = bookkeeping(None)
    """Muscle control: a file with the body and its task, XML or YAML, or the name of one that comes along: base_lonly,
    A2, torque_legs, myolegs26. It sets env, env_kwargs, algorithm and name."""
    env_kwargs: dict[str, Any] = fixed({})
    """Keyword arguments of the env, for example '{forward_reward_weight: 2.0}'."""
    wrappers: list[Any] = fixed([], aliases=["wrapper"], part=True)
    """Gymnasium wrappers, the innermost first: module:Class, or with keywords '{module:Class: {skip: 4}}'."""
    num_envs: int = fixed(8, aliases=["n_envs"], at_least=1, at_most=1_000_000)
    """Number of parallel envs."""
    vec_env_mode: Literal["auto", "batch", "sync", "async"] = option("auto")
    """batch: native threads; sync: this process; async: worker processes; auto: batch, async (emulators) or sync."""
    num_workers: int | None = option(None, at_least=1)
    """Worker processes of async. None: one per core."""
    max_episode_steps: int | None = option(None, at_least=1, below=2**31)
    """Time limit of an episode in env steps. None: the env's own."""
    spread_episodes: bool = option(True)
    """Truncate the first episode of each env at a different step, so that episodes do not all end at the same time."""
    action_hold_seconds: float = option(0.0, at_least=0)
    """Hold every action for this many seconds of env time, rounded to env steps; 0: a new action at every env step."""
    action_hold_start_seconds: float | None = option(None, at_least=0)
    """Hold at the start of training, for a hold that changes; replaces action_hold_seconds."""
    action_hold_end_seconds: float | None = option(None, at_least=0)
    """Hold at the end of the change."""
    action_hold_anneal: bool = option(True)
    """Change the hold linearly in env steps; False keeps the start value, for comparison."""
    action_hold_fraction: float = option(1.0, above=0, at_most=1)
    """Fraction of total_timesteps after which the end value is reached."""
    action_hold_random: list[float] | None = option(None, at_least=0)
    """LOW HIGH: hold each action for a random time in this range (seconds), drawn per action and env."""

    @property
    def holds_actions(self) -> bool:
        """Whether a hold is set; rounded to env steps it may still be 1."""
        given = (self.action_hold_start_seconds, self.action_hold_random)
        return bool(self.action_hold_seconds) or any(value is not None for value in given)


@dataclass
class EnvKeywords:
    """Env keyword arguments with a flag of their own: `--rom FILE` is `--env-kwargs '{rom: FILE}'`."""

    rom: str | None = bookkeeping(None)
    """ROM file of Super Mario Bros. None: $PROXIMA_MARIO_ROM, or the ROM of an installed gym-super-mario-bros."""


@dataclass
class PolicyOptions:
    """The networks and the action distribution."""

    hidden_sizes: list[int] = fixed([64, 64], at_least=1, at_most=65_536)
    """Widths of the hidden layers, [] for none. In a recurrent policy: of the MLPs after the recurrent layers."""
    critic_hidden_sizes: list[int] | None = fixed(None, at_least=1, at_most=65_536)
    """Widths of the critic's hidden layers. None: those of hidden_sizes; if given, hidden layers are never shared."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = fixed("tanh")
    """Activation function of the hidden layers."""
    share_trunk: Literal["auto", "on", "off"] = fixed("auto")
    """Share encoders and recurrent layers between actor and critic; without an RNN also the hidden layers, unless
    critic_hidden_sizes is given. auto: on for images and recurrent policies."""
    rnn: Literal["none", "gru", "lstm"] = fixed("none", aliases=["memory"])
    """Recurrent layers between the encoders and the hidden layers."""
    rnn_size: int = fixed(256, aliases=["memory_size"], at_least=1, at_most=65_536)
    """Hidden units of each recurrent layer."""
    rnn_layers: int = fixed(1, aliases=["memory_layers"], at_least=1, at_most=16)
    """Number of recurrent layers."""
    encoders: dict[str, Any] = fixed({}, part=True)
    """Encoders of observation keys, for example '{scandots: {widths: [128, 32]}, mass: {use: critic}}'. A network of
    your own: '{lidar: {network: "mynets:LidarNet", out: 64}}'."""
    cnn_features: int = fixed(256, at_least=1, at_most=65_536)
    """Output features of the CNN that encodes an image."""
    orthogonal_init: bool = fixed(True)
    """Orthogonal initialisation with gain sqrt(2), 0.01 for the action head and 1 for the value head."""
    distribution: Literal["auto", "gaussian", "tanh_gaussian", "beta"] = fixed("auto")
    """Distribution of Box actions; auto: gaussian. For all other action spaces it follows from the space."""
    std_mode: Literal["learned", "fixed", "state"] = fixed("learned")
    """Std of a Gaussian policy: one learned vector, fixed, or a network output that depends on the observation."""
    initial_std: float = fixed(1.0, above=0)
    """Std at the start of training, in units of the scaled action; with std_mode fixed, throughout."""
    min_std: list[float] = fixed([0.01], above=0)
    """Lower bound of the std. Two: from the first to the second in the last fifth of the run, linearly."""
    max_std: float = fixed(4.0, above=0)
    """Upper bound of the std."""
    scale_actions: bool = fixed(True)
    """Map -1..1 of a Gaussian policy to the bounds of the action space; actions are clipped to them either way."""
    policy_class: str | None = fixed(None, aliases=["policy"], part=True)
    """A policy of your own, module:Class (docs/own-networks.md). None: the algorithm's."""
    policy_kwargs: dict[str, Any] = fixed({})
    """Keyword arguments of policy_class."""


@dataclass
class AlgorithmOptions:
    """The algorithm, and the options that all algorithms share."""

    algorithm: Literal["PPO", "DQN", "PPO+muscle", "distillation"] = fixed("PPO", part=True)
    """PPO; DQN, for Discrete actions; PPO+muscle; distillation of a teacher. Each has its own section of options.
    module:Class, a subclass of one of theirs, is an algorithm of your own."""
    extra_loss: str | None = option(None, aliases=["loss"], part=True)
    """A term of your own that is added to the loss, module:function (docs/own-networks.md)."""
    gamma: float = option(0.99, at_least=0, at_most=1)
    """Discount factor per env step."""
    smdp: bool = option(True)
    """Discount held actions by the env steps they took; False: by gamma per action, with undiscounted reward sums."""
    minibatch_size: int = option(64, aliases=["mini_batch_size", "batch_size"], at_least=1)
    """Samples per minibatch; with a recurrent policy, sequences per minibatch."""


@dataclass
class PPOOptions:
    """Proximal policy optimisation."""

    num_steps: int = option(256, aliases=["n_steps"], at_least=1, at_most=10_000_000)
    """Policy steps per env and rollout; one policy step is one env step, unless actions are held."""
    update_epochs: int = option(10, aliases=["epochs", "n_epochs"], at_least=1)
    """Passes over each rollout."""
    bptt_length: int = option(24, at_least=1)
    """Steps per training sequence of a recurrent policy (truncated backpropagation through time)."""
    gae_lambda: float = option(0.95, at_least=0, at_most=1)
    """Lambda of GAE: 0 uses one-step TD errors (low variance), 1 full returns (low bias)."""
    clip_range: float = option(0.2, aliases=["clip_epsilon", "clip_coef"], above=0)
    """Clip the probability ratio to 1 +/- this in the surrogate objective."""
    clip_value_loss: bool = option(False, aliases=["value_clipping", "clip_vloss"])
    """Also clip the change of the value prediction to +/- clip_range."""
    value_loss_coef: float = option(0.5, aliases=["vf_coef"], at_least=0)
    """Weight of the value loss (half the mean squared error)."""
    entropy_coef: float = option(0.0, aliases=["ent_coef"], at_least=0)
    """Weight of the entropy bonus."""
    normalize_advantage: Literal["minibatch", "batch", "off"] = option("minibatch")
    """Normalise advantages to mean 0 and std 1: per minibatch, once over the batch, or not at all."""
    recompute_advantage: bool = option(False)
    """Recompute values and advantages with the current critic before every epoch."""
    target_kl: float | None = option(None, above=0)
    """Stop the update after an epoch whose approximate KL from the old policy exceeds this. None: never."""
    symmetry: Literal["none", "augment", "loss"] = option("none")
    """Left-right symmetry, for envs that define it. augment: learn from mirrored samples too; loss: a symmetry loss."""
    symmetry_coef: float = option(1.0, at_least=0)
    """Weight of the symmetry loss."""


@dataclass
class DQNOptions:
    """Deep Q-learning."""

    buffer_size: int = option(100_000, at_least=1)
    """Transitions in the replay buffer, over all envs; each image frame is stored once."""
    learning_starts: int = option(10_000, at_least=1)
    """Transitions in the replay buffer before learning starts."""
    train_freq: int = option(4, at_least=1)
    """Transitions, over all envs, per optimizer step."""
    target_update_every: int = option(10_000, aliases=["target_update_interval"], at_least=1)
    """Transitions between copies of the weights to the target network."""
    double_q: bool = option(True, aliases=["double_dqn"])
    """Double DQN (van Hasselt et al. 2016): online network selects the next action, target network evaluates it."""
    return_steps: int = option(1, aliases=["n_step"], at_least=1)
    """n of n-step returns: rewards summed before bootstrapping from the target network."""
    exploration_start: float = option(1.0, aliases=["exploration_initial_eps"], at_least=0, at_most=1)
    """Epsilon (probability of a random action) at the start."""
    exploration_end: float = option(0.05, aliases=["exploration_final_eps"], at_least=0, at_most=1)
    """Epsilon at the end of its schedule."""
    exploration_fraction: float = option(0.1, above=0, at_most=1)
    """Fraction of total_timesteps over which epsilon decreases linearly."""
    iteration_steps: int = option(1_000, at_least=1)
    """Transitions per iteration, over all envs: metrics are written once per iteration."""


@dataclass
class MuscleOptions:
    """The muscle network of algorithm PPO+muscle."""

    muscle_num_epochs: int = option(10, at_least=1)
    """Passes over each rollout's tuples."""
    muscle_batch_size: int = option(512, at_least=1)
    """Tuples per minibatch."""
    muscle_learning_rate: float = option(1e-4, above=0)
    """Learning rate, constant."""
    muscle_activation_weight: float = option(0.01, at_least=0)
    """Weight of the mean squared activation in the loss."""
    muscle_output_weight: float = option(0.01, at_least=0)
    """Weight of the mean squared output before tanh in the loss."""
    muscle_warm_start: int = option(0, at_least=0)
    """Updates on random states before training, each with as many tuples as a rollout has."""


@dataclass
class DistillOptions:
    """Distillation of a teacher into a student; it also uses num_steps, bptt_length and update_epochs of PPO."""

    teacher: str | None = fixed(None)
    """Checkpoint or run folder of the teacher: a policy with the same actions, whose observation keys the env has."""
    teacher_settings: dict[str, Any] = fixed({}, compared=False)
    """Filled in, not to be set: spaces and networks of the teacher, from which a resume builds it again."""
    teacher_share: list[float] = fixed([0.0], at_least=0, at_most=1)
    """Probability that a step takes the teacher's action, not the student's. Two: linear over total_timesteps."""
    distill_loss: Literal["mse", "huber"] = option("mse")
    """Loss on the mean action, scaled so that -1..1 is the env's range if it has one; huber is linear above 1."""


@dataclass
class OptimizerOptions:
    """The optimizer and its learning rate."""

    optimizer: Literal["adam", "adamw"] = option("adam")
    """adam, or adamw with decoupled weight decay."""
    learning_rate: float = option(3e-4, aliases=["lr"], above=0)
    """Learning rate at the start."""
    lr_schedule: Literal["constant", "linear", "cosine", "adaptive"] = option("linear")
    """constant; linear: to 0; cosine: to 10 %; adaptive: adjusted to keep the KL near desired_kl."""
    desired_kl: float = option(0.01, above=0)
    """Target KL per epoch of the adaptive learning rate."""
    weight_decay: float = option(0.0, at_least=0)
    """Weight decay; needs optimizer adamw."""
    adam_eps: float = option(1e-5, above=0)
    """Epsilon of Adam."""
    max_grad_norm: float | None = option(0.5, above=0)
    """Clip the gradient to this norm. None: no clipping."""
    gradient_accumulation: int = option(1, at_least=1)
    """Minibatches whose gradients are averaged into one optimizer step."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = option("fp32")
    """Of the update: fp32, bf16 (needs a GPU or CPU that has it), fp16 (a GPU); auto: bf16 for images if possible."""


@dataclass
class NormalizeOptions:
    """Running normalisation; the statistics are saved with the policy."""

    normalize_obs: bool = fixed(True)
    """Normalise observations, except images, by their running mean and std."""
    clip_obs: float = option(10.0, above=0)
    """Clip normalised observations to +/- this."""
    normalize_reward: bool = option(True)
    """Divide rewards by the running std of the discounted return."""
    clip_reward: float = option(10.0, above=0)
    """Clip normalised rewards to +/- this."""


@dataclass
class ClusterOptions:
    """Rollouts on several processes and machines, with Ray (docs/cluster.md)."""

    rollout_workers: int = option(0, at_least=0, at_most=100_000, compared=False)
    """Ray workers that the envs are divided among, on this machine or in a cluster; 0: envs in this process."""
    ray_address: str | None = bookkeeping(None)
    """Ray cluster to connect to: auto, or HOST:PORT. None: $RAY_ADDRESS, or a Ray on this machine for this run."""
    worker_cpus: float = option(1.0, above=0, compared=False)
    """CPUs of each rollout worker; also its threads of the batch physics."""
    overlap: bool = option(False)
    """Collect the next rollout while the learner updates: faster with slow envs, but with the policy before the
    update. Needs rollout_workers."""


@dataclass
class CheckpointOptions:
    """When checkpoints are saved, and what they contain."""

    save_checkpoint: bool = bookkeeping(True)
    """Write checkpoints: at the end, on Ctrl-C or SIGTERM, and every checkpoint_freq steps and checkpoint_minutes."""
    checkpoint_freq: int = bookkeeping(0, at_least=0)
    """Env steps between checkpoints; 0: not by steps."""
    checkpoint_minutes: float = bookkeeping(10.0, at_least=0)
    """Minutes between checkpoints; 0: not by time."""
    save_optimizer: bool = bookkeeping(True)
    """Also save optimizer and training state, which a resume needs; False: checkpoints for inference only."""
    keep_checkpoints: int = bookkeeping(3, at_least=0, words={"all": 0})
    """Number of newest checkpoints to keep, besides the one with the best return; all or 0: every checkpoint."""
    save_replay: bool = bookkeeping(False)
    """Also save DQN's replay buffer (can be gigabytes); without it a resume refills the buffer and is not exact."""
    auto_resume: bool = bookkeeping(False)
    """Resume the run of this name with the most steps, or start one if there is none: for preemptible jobs."""


@dataclass
class EvaluationOptions:
    """Periodic evaluation and videos; they do not affect training."""

    eval_every: int = option(0, at_least=0, compared=False)
    """Env steps between evaluations, on separate envs; 0: none. The checkpoint with the best evaluation is kept."""
    eval_episodes: int = option(10, at_least=1, compared=False)
    """Episodes per evaluation, with deterministic actions."""
    record_every: int = option(0, at_least=0, compared=False)
    """Env steps between videos, written to the run's videos/; 0: none."""
    video_length: int | None = option(None, at_least=1, compared=False)
    """Env steps per video. None: one episode."""


@dataclass
class TrackOptions:
    """Progress display and logging."""

    tensorboard: bool = bookkeeping(True)
    """Write TensorBoard events to the run's tb/ folder."""
    progress: bool = bookkeeping(True)
    """Show a progress bar; without a terminal, print a line from time to time."""
    wandb: str | None = bookkeeping(None)
    """Also log to this project of Weights & Biases; with WANDB_MODE=offline to a folder in the run's."""
    loggers: list[Any] = bookkeeping([], aliases=["logger"], part=True)
    """Loggers of your own, module:Class with `write(step, metrics)` and `close()`; in Python also as objects."""
    log_info: list[str] = bookkeeping([])
    """Keys of the env's `info` whose numbers become the metrics info_KEY and episode_KEY."""
    log_every: int = bookkeeping(0, aliases=["log_freq"], at_least=0)
    """Iterations (not env steps) between printed tables of metrics; 0: only at the end. Files and loggers get every
    iteration."""
    quiet: bool = bookkeeping(False)
    """Show warnings and errors only: no progress, no tables, no summary."""

"""A search for hyperparameters with Optuna, which prunes bad trials early: pip install optuna."""

from proxima import train

try:
    import optuna
except ImportError:
    optuna = None


def objective(trial):
    """The return of one short run."""

    def report(trainer, metrics):
        trial.report(metrics["episode_return"], step=int(metrics["iteration"]))
        if trial.should_prune():
            raise optuna.TrialPruned  # the run is closed and saved first

    result = train(
        env="CartPole-v1",
        name=f"trial-{trial.number}",
        total_timesteps=4_000,
        learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
        clip_range=trial.suggest_float("clip_range", 0.1, 0.4),
        num_envs=4,
        num_steps=256,
        quiet=True,
        on_iteration=report,
    )
    return result.episode_return


if optuna is None:
    print("This example needs Optuna: pip install optuna.")
else:
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=2))
    study.optimize(objective, n_trials=4)
    print("best", study.best_params, "with a return of", study.best_value)

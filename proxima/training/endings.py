"""What ended in a vector step, as rows: at once for envs on the CPU, a whole rollout later for envs on a GPU."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from proxima.data.rollout import as_stored
from proxima.envs.contract import Obs, Step


@dataclass
class Endings:
    """`R` finished episodes."""

    time: Tensor  # [R], step of the rollout
    env: Tensor  # [R]
    cut: Tensor  # [R] bool: truncated, and not terminated as well
    return_: Tensor  # [R]
    length: Tensor  # [R]
    final_obs: dict[str, Tensor]  # [R, ...], as stored
    state: Tensor | None  # [R, S], the memory of all before the final observation
    success: Tensor | None = None  # [R], NaN where the env does not tell
    info: dict[str, Tensor] = field(default_factory=dict)  # [R] each, the env's own numbers

    @classmethod
    def of_step(cls, t: int, step: Step, final_obs: Obs, state: Tensor | None) -> "Endings":
        """Those of one step of envs on the CPU."""
        env = step.ended.nonzero().squeeze(-1)
        return cls(
            time=torch.full_like(env, t),
            env=env,
            cut=(step.truncated & ~step.terminated)[env],
            return_=step.episodes.return_[env],
            length=step.episodes.length[env],
            final_obs=as_stored({key: x[env] for key, x in final_obs.items()}),
            state=None if state is None else state[env.to(state.device)],
            success=None if step.episodes.success is None else step.episodes.success[env],
            info={name: x[env] for name, x in step.episodes.info.items()},
        )


class DeferredEndings:
    """Keeps all envs' rows of every step on the device: to ask which of them ended would make each step wait."""

    def __init__(self, num_steps: int):
        self._num_steps = num_steps
        self._kept: dict[str, Tensor] = {}

    def keep(self, t: int, step: Step, final_obs: Obs, state: Tensor | None) -> None:
        """Copy what a step says about episodes that may have ended in it."""
        rows = {"cut": step.truncated & ~step.terminated}
        rows |= {"return": step.episodes.return_, "length": step.episodes.length}
        rows |= {f"obs {key}": x for key, x in as_stored(final_obs).items()}
        rows |= {f"info {name}": x for name, x in step.episodes.info.items()}
        if step.episodes.success is not None:
            rows["success"] = step.episodes.success
        if state is not None:
            rows["state"] = state
        for name, x in rows.items():
            if name not in self._kept:
                self._kept[name] = x.new_zeros(self._num_steps, *x.shape)
            self._kept[name][t] = x

    def take(self, ended: Tensor) -> Endings:
        """Those of the rollout, where `ended` `[T, N]` is true; asked once, when it is whole."""
        time, env = ended.nonzero(as_tuple=True)
        rows = {name: x[time, env] for name, x in self._kept.items()}

        def named(kind: str) -> dict[str, Tensor]:
            return {name.removeprefix(kind): x for name, x in rows.items() if name.startswith(kind)}

        return Endings(
            time=time,
            env=env,
            cut=rows.get("cut", time.bool()),
            return_=rows.get("return", time),
            length=rows.get("length", time),
            final_obs=named("obs "),
            state=rows.get("state"),
            success=rows.get("success"),
            info=named("info "),
        )

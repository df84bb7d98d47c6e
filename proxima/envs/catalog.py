"""Which Gymnasium ids exist, which of them can be trained, and the nearest one to a mistyped id.

Nothing is constructed here: everything is decided from Gymnasium's registry and from which packages can be imported.
"""

import difflib
import importlib
import importlib.util
import re
from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from proxima.envs.games.mario.rom import VARIABLE, find_rom
from proxima.envs.gymnasium.env_errors import asks_to_stop, first_line
from proxima.errors import UsageError

# Entry points that only raise: mujoco-py's old ids and the shims for old Gym.
_DEAD_ENTRY_POINTS = ("_raise_mujoco_py_error", "_raise_shimmy_error")
# Gymnasium's functional envs need JAX and are shown nowhere else either.
_FUNCTIONAL_NAMESPACES = ("phys2d", "tabular")

# Similarity of a mistyped id and the one proposed for it, as difflib computes it: 1 is identical.
_LEAST_LIKENESS = 0.75
_SHORTEST_BEGINNING = 5

OURS = "proxima"
"""Namespace of the ids that are registered here."""
TENSOR_WORLDS = {
    f"{OURS}/SyntheticQuadruped-v0": "proxima.envs.toys.quadruped:SyntheticQuadruped",
    f"{OURS}/Recall-v0": "proxima.envs.toys.recall:Recall",
}
"""Worlds of ours on tensors: the class that runs all envs at once. `single` makes one env of it for Gymnasium."""
for _id in TENSOR_WORLDS:
    gym.register(
        _id,
        "proxima.envs.tensor_env:single",
        max_episode_steps=1000 if "Quadruped" in _id else None,
        kwargs={"env_id": _id},
    )
for _name, _steps, _entry_point in (
    ("CartPoleHidden-v1", 500, "hidden_velocity:cart_pole"),
    ("PendulumHidden-v1", 200, "hidden_velocity:pendulum"),
    ("PixelCatch-v0", None, "pixel_catch:PixelCatch"),
):
    gym.register(f"{OURS}/{_name}", f"proxima.envs.toys.{_entry_point}", max_episode_steps=_steps)

_MARIO = "proxima.envs.games.mario.env:MarioEnv"
gym.register(f"{OURS}/SuperMarioBros-v0", _MARIO)
for _world in range(1, 9):
    for _stage in range(1, 5):
        _kwargs = {"world": _world, "stage": _stage}
        gym.register(f"{OURS}/SuperMarioBros-{_world}-{_stage}-v0", _MARIO, kwargs=_kwargs)


ATARI = "ALE"
"""Namespace of the Atari ids, which ale-py registers when it is imported."""
_ATARI_PACKAGE, _ATARI_ENV, _ATARI_STEPS = "ale_py", "proxima.envs.games.atari:AtariEnv", 27_000
INSTALL = {extra: f'pip install "proxima-rl[{extra}]"' for extra in ("mario", "atari")}
_MAKES_EMULATORS = (_MARIO, _ATARI_ENV)


def is_emulator(spec: EnvSpec) -> bool:
    """Whether the env is an emulator, whose steps are so long that each core should have its own process."""
    return spec.entry_point in _MAKES_EMULATORS


def atari_obstacle() -> str | None:
    """Have ale-py register its ids; None, or what keeps it from that: the command to install it, or its error."""
    return INSTALL["atari"] if not _is_installed(_ATARI_PACKAGE) else import_obstacle(_ATARI_PACKAGE)


def import_obstacle(module: str) -> str | None:
    """Import a module; None, or why it cannot be imported, in one line. A broken package may raise anything."""
    try:
        importlib.import_module(module)
    except BaseException as error:
        if asks_to_stop(error):
            raise
        return f"{module} cannot be imported ({type(error).__name__}: {first_line(error)})"
    return None


def _is_installed(package: str) -> bool:
    """Whether there is such a package; decided without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it is imported, and has no spec
        return True


def _ours(spec: EnvSpec) -> EnvSpec:
    """The spec as it is run: ids of ale-py in the namespace ALE become our env of pixels on the same game."""
    if spec.namespace != ATARI or not str(spec.entry_point).startswith(_ATARI_PACKAGE):
        return spec
    kept = {name: spec.kwargs[name] for name in ("game", "repeat_action_probability", "full_action_space")}
    return replace(spec, entry_point=_ATARI_ENV, kwargs=kept, max_episode_steps=_ATARI_STEPS, vector_entry_point=None)


def is_dead(spec: EnvSpec) -> bool:
    """Whether the id is registered only to say that it is gone."""
    return getattr(spec.entry_point, "__name__", "") in _DEAD_ENTRY_POINTS


def _is_old_atari(spec: EnvSpec) -> bool:
    """Atari's ids without a namespace differ in skipped frames and stickiness; they build, but are not proposed."""
    return spec.namespace is None and str(spec.entry_point).startswith(_ATARI_PACKAGE)


def base_name(env_id: str) -> str:
    """The id without its version."""
    return re.sub(r"-v\d+$", "", env_id)


def version(env_id: str) -> int:
    """The number behind `-v`, -1 where there is none."""
    match = re.search(r"-v(\d+)$", env_id)
    return int(match[1]) if match else -1


def live_ids() -> list[str]:
    """Every registered id that can be built."""
    return [
        env_id
        for env_id, spec in gym.registry.items()
        if not is_dead(spec) and spec.namespace not in _FUNCTIONAL_NAMESPACES and not _is_old_atari(spec)
    ]


def newest_version(env_id: str) -> str | None:
    """The id of the highest live version of the same env, None where there is no such env."""
    name = base_name(env_id)
    return max((known for known in live_ids() if base_name(known) == name), key=version, default=None)


def nearest_id(env_id: str) -> str | None:
    """The id that was probably meant, None where nothing is near."""
    atari_obstacle()  # a game may be meant; its names come with the package
    names: dict[str, str] = {}
    for known in live_ids():
        name = base_name(known).lower()
        names[name] = known
        names.setdefault(name.rpartition("/")[2], known)
    wanted = base_name(env_id).lower()
    longer = [name for name in names if name.startswith(wanted)] if len(wanted) >= _SHORTEST_BEGINNING else []
    near = sorted(longer, key=len) or difflib.get_close_matches(wanted, names, n=1, cutoff=_LEAST_LIKENESS)
    return newest_version(names[near[0]]) if near else None


def find_spec(env_id: str) -> EnvSpec:
    """The spec of a registered id, also in Gymnasium's `module:EnvId` form; no version means the newest.

    Raises:
        UsageError: the module cannot be imported, or there is no such id; the nearest one is named.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except BaseException as error:  # a module of somebody else's may raise anything
            if asks_to_stop(error):
                raise
            raise UsageError(
                f"env {env_id!r}: cannot import the module {module!r}: {type(error).__name__}: {first_line(error)}"
            ) from error
    if name.startswith(f"{ATARI}/") and (obstacle := atari_obstacle()):
        raise UsageError(f"env {name!r} needs ale-py: {obstacle}")
    newest = newest_version(name)
    spec = gym.registry.get(name)
    if spec is None and base_name(name) == name and newest is not None:
        spec = gym.registry[newest]
    if spec is not None and not is_dead(spec):
        return _ours(spec)
    if newest is not None:
        gone = spec is not None or version(name) < version(newest)
        raise UsageError(f"env {name!r} {'is no longer supported' if gone else 'does not exist'}: use {newest!r}")
    near = nearest_id(name)
    advice = f"did you mean {near!r}?" if near else "`proxima envs` lists those that are."
    if "/" in name or not near:
        advice += f" For an env of another package, name its module too: 'package:{name}'."
    raise UsageError(f"env {name!r} is not registered; {advice}")


def with_kwargs(spec: EnvSpec, env_kwargs: Any) -> EnvSpec:
    """A copy of the spec that carries the keywords; Gymnasium then copies them for each env it makes."""
    return replace(spec, kwargs={**spec.kwargs, **dict(env_kwargs or {})})


def is_mujoco(spec: EnvSpec) -> bool:
    """Whether the env is one of Gymnasium's MuJoCo tasks, by its entry point."""
    entry_point = spec.entry_point
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return module.startswith("gymnasium.envs.mujoco.")


def missing_package(spec: EnvSpec) -> str | None:
    """The command that provides what an env needs, None where it is there; decided without importing it."""
    entry_point = spec.entry_point
    module = entry_point.split(":")[0] if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    if spec.entry_point == _MARIO:
        if not _is_installed("stable_retro"):
            return INSTALL["mario"]
        return None if (rom := find_rom()) and rom.is_file() else f"export {VARIABLE}=<path of the game file>"
    if module.startswith("gymnasium.envs.box2d"):
        return None if _is_installed("Box2D") else 'pip install "gymnasium[box2d]"'
    package = "mujoco" if module.startswith("gymnasium.envs.mujoco") else module.split(".")[0]
    if not package or package == "__main__" or _is_installed(package):
        return None
    return f"pip install {package}"

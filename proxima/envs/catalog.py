"""Gymnasium's registry: our own ids, which ids can be trained, which packages they need, and the nearest to a typo.

No env is built here.
"""

import difflib
import importlib
import importlib.util
import itertools
import re
from dataclasses import replace

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from proxima.envs.games.mario.rom import VARIABLE, find_rom
from proxima.envs.gymnasium.env_errors import asks_to_stop
from proxima.envs.own import OwnSpec, find_own
from proxima.errors import UsageError, one_line
from proxima.own_parts import is_given, only_in_python

# Entry points that only raise: mujoco-py's old ids and the shims for old Gym.
_DEAD_ENTRY_POINTS = ("_raise_mujoco_py_error", "_raise_shimmy_error")
# Gymnasium's functional envs, which need JAX.
_FUNCTIONAL_NAMESPACES = ("phys2d", "tabular")

_MIN_SIMILARITY = 0.75  # of a mistyped id and the proposed one, as difflib computes it: 1 is identical
_MIN_PREFIX = 5

OURS = "proxima"
"""Namespace of the ids that are registered here."""
TENSOR_WORLDS = {f"{OURS}/Recall-v0": "proxima.envs.toys.recall:Recall"}
"""Our own envs on tensors: the class that runs all envs at once. `single` makes one of them for Gymnasium."""
_ON_MUJOCO = {"Muscle": "muscle.env:MuscleVecEnv muscle.single:MuscleEnv"}
_ON_MUJOCO |= {"Quadruped": "locomotion.env:Quadruped locomotion.single:QuadrupedEnv"}
"""Our own envs on MuJoCo: the class that runs all envs at once, and that of one of them for Gymnasium."""
for _id in TENSOR_WORLDS:
    gym.register(_id, "proxima.envs.tensor_env:single", kwargs={"env_id": _id})
for _name, _classes in _ON_MUJOCO.items():
    _all, _one = (f"proxima.envs.{name}" for name in _classes.split())
    TENSOR_WORLDS[f"{OURS}/{_name}-v0"] = _all
    gym.register(f"{OURS}/{_name}-v0", _one)
for _name, _steps, _entry_point in (
    ("CartPoleHidden-v1", 500, "hidden_velocity:cart_pole"),
    ("PendulumHidden-v1", 200, "hidden_velocity:pendulum"),
    ("PixelCatch-v0", None, "pixel_catch:PixelCatch"),
):
    gym.register(f"{OURS}/{_name}", f"proxima.envs.toys.{_entry_point}", max_episode_steps=_steps)

_MARIO = "proxima.envs.games.mario.env:MarioEnv"
gym.register(f"{OURS}/SuperMarioBros-v0", _MARIO)
for _world, _stage in itertools.product(range(1, 9), range(1, 5)):
    _kwargs = {"world": _world, "stage": _stage}
    gym.register(f"{OURS}/SuperMarioBros-{_world}-{_stage}-v0", _MARIO, kwargs=_kwargs)

ATARI = "ALE"
"""Namespace of the Atari ids, which ale-py registers when it is imported."""
_ATARI_PACKAGE, _ATARI_ENV, _ATARI_STEPS = "ale_py", "proxima.envs.games.atari:AtariEnv", 27_000
INSTALL = {extra: f'pip install "proxima-rl[{extra}]"' for extra in ("mario", "atari")}
_MAKES_EMULATORS = (_MARIO, _ATARI_ENV)


def is_emulator(spec: EnvSpec) -> bool:
    """Whether the env is an emulator, whose steps take so long that every core should have a process of its own."""
    return spec.entry_point in _MAKES_EMULATORS


def atari_obstacle() -> str | None:
    """Import ale-py, which registers its ids; None, or the command to install it, or why it cannot be imported."""
    return INSTALL["atari"] if not _is_installed(_ATARI_PACKAGE) else import_obstacle(_ATARI_PACKAGE)


def import_obstacle(module: str) -> str | None:
    """Import a module; None, or why it cannot be imported, in one line. A broken package may raise any exception."""
    try:
        importlib.import_module(module)
    except BaseException as error:
        if asks_to_stop(error):
            raise
        return f"{module} cannot be imported ({one_line(error)})"
    return None


def _is_installed(package: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it has been imported and has no spec
        return True


def _ours(spec: EnvSpec) -> EnvSpec:
    """The spec that is run: for ale-py's ids in the namespace ALE, our pixel env of the same game."""
    if spec.namespace != ATARI or not str(spec.entry_point).startswith(_ATARI_PACKAGE):
        return spec
    kept = {name: spec.kwargs[name] for name in ("game", "repeat_action_probability", "full_action_space")}
    return replace(spec, entry_point=_ATARI_ENV, kwargs=kept, max_episode_steps=_ATARI_STEPS, vector_entry_point=None)


def is_dead(spec: EnvSpec) -> bool:
    """Whether the id is only registered to raise that it is no longer supported."""
    return getattr(spec.entry_point, "__name__", "") in _DEAD_ENTRY_POINTS


def base_name(env_id: str) -> str:
    """The id without its version."""
    return re.sub(r"-v\d+$", "", env_id)


def version(env_id: str) -> int:
    """The number after `-v`, -1 if there is none."""
    match = re.search(r"-v(\d+)$", env_id)
    return int(match[1]) if match else -1


def live_ids() -> list[str]:
    """Every registered id that can be built, except Atari's old ids without a namespace, which have other defaults."""
    return [
        env_id
        for env_id, spec in gym.registry.items()
        if not is_dead(spec) and spec.namespace not in _FUNCTIONAL_NAMESPACES
        if spec.namespace is not None or not str(spec.entry_point).startswith(_ATARI_PACKAGE)
    ]


def newest_version(env_id: str) -> str | None:
    """The id of the highest live version of the same env, None if there is no such env."""
    name = base_name(env_id)
    return max((known for known in live_ids() if base_name(known) == name), key=version, default=None)


def nearest_id(env_id: str) -> str | None:
    """The id that was probably meant, None if none is similar."""
    atari_obstacle()  # registers the games, one of which may be meant
    names: dict[str, str] = {}
    for known in live_ids():
        name = base_name(known).lower()
        names[name] = known
        names.setdefault(name.rpartition("/")[2], known)
    wanted = base_name(env_id).lower()
    longer = [name for name in names if name.startswith(wanted)] if len(wanted) >= _MIN_PREFIX else []
    near = sorted(longer, key=len) or difflib.get_close_matches(wanted, names, n=1, cutoff=_MIN_SIMILARITY)
    return newest_version(names[near[0]]) if near else None


def find_spec(env_id: str) -> EnvSpec:
    """The spec of a registered id, also in Gymnasium's `module:EnvId` form; without a version, the newest one.

    If the module has registered no such id, `module:attribute` is the user's own: an `OwnSpec`.

    Raises:
        UsageError: the module cannot be imported, or there is no such id; the message names the nearest one.
    """
    if is_given(env_id) or only_in_python(env_id):
        return OwnSpec.of(env_id, find_own(env_id))
    module, _, name = env_id.rpartition(":")
    if module and (obstacle := import_obstacle(module)):
        raise UsageError(f"env {env_id!r}: the module {obstacle}")
    if name.startswith(f"{ATARI}/") and (obstacle := atari_obstacle()):
        raise UsageError(f"env {name!r} needs ale-py: {obstacle}")
    newest = newest_version(name)
    spec = gym.registry.get(name)
    if spec is None and base_name(name) == name and newest is not None:
        spec = gym.registry[newest]
    if spec is not None and not is_dead(spec):
        return _ours(spec)
    if module and (own := find_own(env_id)) is not None:
        return OwnSpec.of(env_id, own)
    if newest is not None:
        gone = spec is not None or version(name) < version(newest)
        raise UsageError(f"env {name!r} {'is no longer supported' if gone else 'does not exist'}: use {newest!r}")
    near = nearest_id(name)
    advice = f"did you mean {near!r}?" if near else "`proxima envs` lists those that are."
    if "/" in name or not near:
        advice += f" For an env of another package, name its module too: 'package:{name}'."
    nor = f", nor an attribute of {module}" if module else ""
    raise UsageError(f"env {name!r} is not registered{nor}; {advice}")


def entry_point(spec: EnvSpec) -> str:
    """The entry point of an env as `module:name`."""
    creator = spec.entry_point
    if isinstance(creator, str):
        return creator
    return f"{getattr(creator, '__module__', '')}:{getattr(creator, '__qualname__', '')}"


def is_mujoco(spec: EnvSpec) -> bool:
    """Whether the env is one of Gymnasium's MuJoCo tasks, by its entry point."""
    return entry_point(spec).startswith("gymnasium.envs.mujoco.")


def missing_package(spec: EnvSpec) -> str | None:
    """The command that installs what an env needs, None if it is installed; nothing is imported."""
    module = entry_point(spec).split(":")[0]
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

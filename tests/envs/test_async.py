"""Async mode: the same trajectories as sync, workers that die, and nothing left behind."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_envs
from gymnasium import spaces

from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.async_vec import AsyncVecEnv
from proxima.envs.make import make_env
from proxima.errors import EnvFailure, UsageError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def counters(opened: list[VecEnv], *, num_envs: int = 2, num_workers: int = 2, **kwargs: Any) -> AsyncVecEnv:
    options = {key: kwargs.pop(key) for key in ("max_failures", "step_timeout") if key in kwargs}
    env = AsyncVecEnv("toy/Counter-v0", num_envs=num_envs, num_workers=num_workers, env_kwargs=kwargs, **options)
    opened.append(env)
    return env


def noop(env: VecEnv) -> torch.Tensor:
    return torch.zeros(env.num_envs, dtype=torch.int64)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float = 10.0) -> list[int]:
    """The processes that still exist after a while."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def random_action(env: VecEnv, generator: torch.Generator) -> torch.Tensor:
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return torch.randint(int(space.n), (env.num_envs,), generator=generator)
    low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
    return low + (high - low) * torch.rand(env.num_envs, *space.shape, generator=generator)


def record(env: VecEnv, steps: int) -> dict[str, list[torch.Tensor]]:
    """Everything that random actions return."""
    generator = torch.Generator().manual_seed(1)
    log: dict[str, list[torch.Tensor]] = {"obs": [env.reset(123)["obs"].clone()]}
    for _ in range(steps):
        step = env.step(random_action(env, generator))
        ended = step.ended
        rows = {
            "obs": step.obs["obs"],
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "return": step.episodes.return_[ended],
            "length": step.episodes.length[ended],
        }
        if step.final_obs is not None:
            rows["final_obs"] = step.final_obs["obs"][ended]
        for key, value in rows.items():
            log.setdefault(key, []).append(value.clone())
    return log


@pytest.mark.parametrize(
    ("env_id", "modes", "options"),
    [
        ("CartPole-v1", ("sync", "async"), {}),
        ("Pendulum-v1", ("sync", "async"), {"max_episode_steps": 23, "spread_episodes": True}),
        ("HalfCheetah-v5", ("sync", "async", "batch"), {"max_episode_steps": 30, "spread_episodes": True}),
        ("toy/Counter-v0", ("sync", "async"), {"env_kwargs": {"fail": "raise", "fail_at": 5, "length": 7}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_mode_gives_the_same_trajectory(
    env_id: str, modes: tuple[str, ...], options: dict[str, Any], opened: list[VecEnv]
) -> None:
    logs = []
    for mode in modes:
        env = make_env(env_id, num_envs=3, mode=mode, num_workers=2, **options)
        opened.append(env)
        logs.append(record(env, 80))
    assert sum(len(ends) for ends in logs[0]["length"]) >= 6
    for other in logs[1:]:
        assert other.keys() == logs[0].keys()
        for key, values in logs[0].items():
            assert len(other[key]) == len(values)
            assert all(torch.equal(one, two) for one, two in zip(values, other[key], strict=True)), key


def test_envs_are_spread_over_workers_without_torch_and_with_one_thread(opened: list[VecEnv]) -> None:
    env = AsyncVecEnv("toy/Process-v0", num_envs=5, num_workers=2)
    opened.append(env)
    pids, threads = env.reset(0)["obs"].T.tolist()
    assert len(set(pids)) == 2
    assert pids[0] == pids[1] != pids[2] == pids[3] == pids[4]
    assert os.getpid() not in pids
    assert threads == [1.0] * 5
    fixed = AsyncVecEnv("toy/Fixed-v0", num_envs=1)
    opened.append(fixed)
    assert list(fixed.reset(0)) == ["body/gear", "body/pos", "camera", "height", "pair/0", "pair/1"]
    assert fixed.step(noop(fixed)).reward.item() == 0.0, "the worker has imported torch"


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ("exit", ["exited with code 3", "the emulator says goodbye"]),
        ("segfault", ["killed by SIGSEGV", "Segmentation fault", "break_down"]),
        ("hang", ["did not answer within 1.5 s (step_timeout) and was killed", "break_down"]),
    ],
)
def test_a_dead_worker_is_named_and_replaced(fail: str, words: list[str], opened: list[VecEnv], caplog: Any) -> None:
    # Envs 0 and 1 share a worker: env 0 has finished its step, and written it, when env 1 takes the worker down.
    env = counters(opened, num_envs=4, fail=fail, fail_seed=1, length=99, step_timeout=1.5 if fail == "hang" else 60.0)
    env.reset(0)
    env.step(noop(env))
    before = env.step(noop(env)).obs["obs"].clone()
    with caplog.at_level(logging.WARNING, logger="proxima"):
        step = env.step(noop(env))
    assert step.truncated.tolist() == [True, True, False, False]
    assert not step.terminated.any()
    assert step.reward.tolist() == [0, 0, 3, 3]
    assert step.final_obs is not None
    assert torch.equal(step.final_obs["obs"][:2], before[:2])
    assert step.obs["obs"][:, :2].tolist() == [[0, 0], [0, 0], [0, 3], [0, 3]]
    assert step.episodes.length[:2].tolist() == [3, 3]
    assert env.counters() == {"worker_restarts": 1}
    assert len(caplog.records) == 1
    for word in ["worker 0 (envs 0 to 1)", *words]:
        assert word in caplog.text
    assert not env.step(noop(env)).ended.any()
    assert env.counters() == {"worker_restarts": 1}


def test_a_worker_killed_between_steps_is_replaced(opened: list[VecEnv], caplog: Any) -> None:
    env = counters(opened, length=99)
    env.reset(0)
    env.step(noop(env))
    os.kill(env._group.workers[1].pid, signal.SIGKILL)
    step = env.step(noop(env))
    assert step.truncated.tolist() == [False, True]
    assert "worker 1 (envs 1 to 1) was killed by SIGKILL" in caplog.text
    assert env.step(noop(env)).obs["obs"][:, :2].tolist() == [[0, 3], [0, 1]]


def test_a_python_exception_costs_only_its_own_env(opened: list[VecEnv], caplog: Any) -> None:
    env = counters(opened, num_envs=4, fail="raise", fail_seed=1, length=99)
    env.reset(0)
    pids = [worker.pid for worker in env._group.workers]
    for _ in range(3):
        step = env.step(noop(env))
    assert step.truncated.tolist() == [False, True, False, False]
    assert "env 1 (worker 0) raised in step" in caplog.text
    assert "joint 3 exploded" in caplog.text
    assert "break_down" in caplog.text
    assert env.counters() == {"worker_restarts": 1}
    assert [worker.pid for worker in env._group.workers] == pids


@pytest.mark.parametrize(("fail", "reason"), [("raise", "RuntimeError: joint 3 exploded"), ("exit", "code 3")])
def test_an_env_that_always_dies_ends_the_run(fail: str, reason: str, opened: list[VecEnv]) -> None:
    env = counters(opened, num_envs=1, fail=fail, fail_at=1, max_failures=3)
    env.reset(0)
    pids = [worker.pid for worker in env._group.workers]
    for _ in range(2):
        assert env.step(noop(env)).truncated.all()
    with pytest.raises(EnvFailure, match=rf"3 times in a row.*{reason}") as caught:
        env.step(noop(env))
    assert len(str(caught.value).splitlines()) <= 2
    assert env.counters() == {"worker_restarts": 2}
    assert wait_until_gone(pids) == []


def test_a_broken_constructor_is_a_usage_error_in_one_line(opened: list[VecEnv]) -> None:
    with pytest.raises(UsageError, match=r"^cannot build env 'toy/Counter-v0': ValueError: .*is broken$"):
        counters(opened, fail="build")
    with pytest.raises(UsageError, match="does not take the keyword 'lenght'; did you mean 'length'"):
        counters(opened, lenght=3)


def test_a_worker_that_dies_while_building_is_reported(opened: list[VecEnv]) -> None:
    with pytest.raises(EnvFailure, match="died while building it; it exited with code 7"):
        counters(opened, fail="exit in build")


def test_what_cannot_be_pickled_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be sent to a worker process"):
        AsyncVecEnv("toy/Fixed-v0", env_kwargs={"returned": threading.Lock()})


def test_wrappers_travel_to_the_workers(opened: list[VecEnv]) -> None:
    env = AsyncVecEnv("toy/Counter-v0", wrappers=[lambda inner: toy_envs.AddTen(inner)])
    opened.append(env)
    assert env.reset(0)["obs"][0, :2].tolist() == [10, 10]


def test_a_worker_that_writes_much_to_stderr_is_not_blocked(opened: list[VecEnv]) -> None:
    env = counters(opened, noise_bytes=300_000, step_timeout=20.0)
    env.reset(0)
    for _ in range(3):
        env.step(noop(env))
    assert env.counters() == {"worker_restarts": 0}


def test_ctrl_c_and_sigterm_are_the_parents_affair(opened: list[VecEnv]) -> None:
    env = counters(opened, length=99)
    env.reset(0)
    for worker in env._group.workers:
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
    assert env.step(noop(env)).reward.tolist() == [1, 1]
    assert env.counters() == {"worker_restarts": 0}


def test_reset_after_an_interrupted_step(opened: list[VecEnv], monkeypatch: Any) -> None:
    env = counters(opened, length=99)
    first = env.reset(0)["obs"].clone()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env._group, "_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step(noop(env))
    with pytest.raises(RuntimeError, match="interrupted"):
        env.step(noop(env))
    again = env.reset(0)["obs"]
    assert torch.equal(again[:, 1:], first[:, 1:])
    assert env.step(noop(env)).reward.tolist() == [1, 1]


def test_close_ends_the_workers(opened: list[VecEnv]) -> None:
    env = counters(opened)
    env.reset(0)
    pids = [worker.pid for worker in env._group.workers]
    env.close()
    env.close()
    assert [pid for pid in pids if is_alive(pid)] == []
    forgotten = counters([])
    pids = [worker.pid for worker in forgotten._group.workers]
    del forgotten
    assert wait_until_gone(pids) == []


SCRIPT = """
import sys
import gymnasium as gym, numpy as np, torch
from gymnasium import spaces
from proxima.envs.make import make_env

class Mine(gym.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        import time
        time.sleep(HANG)
        return np.full(2, 0.5, np.float32), 1.0, False, False, {}

gym.register("Mine-v0", ENTRY_POINT)
env = make_env("Mine-v0", num_envs=2, mode="async", num_workers=2)
env.reset(0)
print(*[worker.pid for worker in env._group.workers], flush=True)
print(env.step(torch.zeros(2, dtype=torch.int64)).reward.sum().item(), flush=True)
"""


def start_script(folder: Path, *, entry_point: str, hang: float) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("ENTRY_POINT", entry_point).replace("HANG", str(hang)))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("entry_point", ["Mine", "'__main__:Mine'"])
def test_a_script_needs_no_main_guard_and_no_close(tmp_path: Path, entry_point: str) -> None:
    with start_script(tmp_path, entry_point=entry_point, hang=0) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    pids, total = output.splitlines()
    assert total == "2.0"
    assert wait_until_gone([int(pid) for pid in pids.split()]) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_workers_of_a_killed_parent_vanish_even_in_the_middle_of_a_step(tmp_path: Path) -> None:
    with start_script(tmp_path, entry_point="Mine", hang=1000) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)
        time.sleep(0.2)  # into the endless step
        process.kill()
        assert wait_until_gone(pids) == []


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_numbers_that_the_env_names_are_kept_where_an_episode_ends(mode: str, opened: list[VecEnv]) -> None:
    kwargs = {"fail": "raise", "fail_at": 5, "fail_seed": 7}
    env = make_env("toy/Scorer-v0", num_envs=3, mode=mode, num_workers=2, env_kwargs=kwargs)
    opened.append(env)
    env.reset(7)
    assert env.episode_info == ("flag_get", "x_pos", "note", "absent")
    for _ in range(4):
        info = env.step(noop(env)).episodes.info
    assert info["flag_get"].tolist() == [1.0] * 3 and info["x_pos"].tolist() == [4.0] * 3
    assert info["note"].isnan().all() and info["absent"].isnan().all()
    step = env.step(noop(env))  # env 0 fails: its numbers are unknown
    assert step.ended.tolist() == [True, False, False]
    assert all(x[0].isnan() for x in step.episodes.info.values())
    for _ in range(3):
        step = env.step(noop(env))
    assert step.episodes.info["flag_get"][1:].tolist() == [0.0, 0.0]
    assert step.episodes.info["x_pos"][1:].tolist() == [14.0, 14.0]


def test_a_worker_that_dies_leaves_no_numbers(opened: list[VecEnv]) -> None:
    options: dict[str, Any] = {"env_kwargs": {"fail": "exit", "fail_at": 5, "fail_seed": 7}}
    env = AsyncVecEnv("toy/Scorer-v0", num_envs=2, num_workers=2, **options)
    opened.append(env)
    env.reset(7)
    for _ in range(5):
        step = env.step(noop(env))
    assert step.ended.tolist() == [True, False]
    assert all(x[0].isnan() for x in step.episodes.info.values())

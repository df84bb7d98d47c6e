"""Videos, read back from the file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
from gymnasium import spaces

from proxima.cli import main
from proxima.errors import UsageError
from proxima.evaluation import headless
from proxima.evaluation.camera import follow
from proxima.evaluation.mp4 import write_mp4
from proxima.evaluation.video import _play, record, watch
from tests.envs import toy_envs  # noqa: F401 - registers them


class Painter(gym.Env):
    """Renders an odd-sized frame whose brightness is the time; an episode has four steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    observation_space = spaces.Tuple([spaces.Discrete(5), spaces.Box(-1.0, 1.0, (2,))])
    action_space = spaces.Discrete(3, start=2)

    def __init__(self, render_mode: str | None = None, fail_at: int = -1):
        self.render_mode, self.fail_at, self.time = render_mode, fail_at, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def observe(self) -> tuple[int, np.ndarray]:
        return self.time, np.full(2, self.time / 10, np.float32)

    def step(self, action: Any) -> tuple:
        self.time += 1
        if self.time == self.fail_at:
            raise RuntimeError("the brush broke")
        return self.observe(), 1.0, self.time == 4, False, {}

    def render(self) -> np.ndarray:
        return np.full((33, 47, 3), 60 * self.time, np.uint8)


class Blind(Painter):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, env in (("Painter", Painter), ("Blind", Blind)):
        monkeypatch.setitem(gym.registry, f"{name}-v0", gym.spec("CartPole-v1").__class__(f"{name}-v0", env))


def steer(_: dict[str, np.ndarray]) -> int:
    return 3


def brightness(path: Path) -> list[int]:
    """In steps of 60, which survive compression."""
    return [round(float(frame.mean()) / 60) for frame in iio.imiter(path)]


@pytest.mark.slow
def test_one_episode_is_h264_that_browsers_play(tmp_path: Path) -> None:
    seen: list[tuple[int, np.ndarray]] = []

    def act(obs: tuple[int, np.ndarray]) -> int:
        seen.append(obs)
        return 3

    path = record(act, "Painter-v0", path=tmp_path / "new" / "painter.mp4")
    meta = iio.immeta(path, plugin="FFMPEG")
    assert meta["codec"] == "h264" and meta["pix_fmt"].startswith("yuv420p") and meta["fps"] == 12.0
    assert meta["size"] == (48, 34)  # 47 x 33, made even
    assert brightness(path) == [0, 1, 2, 3, 4]
    content = path.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")  # faststart: it plays while it loads
    assert [p.name for p in path.parent.iterdir()] == ["painter.mp4"]
    assert [obs[0] for obs in seen] == [0, 1, 2, 3]  # the env's own observations


def test_a_length_goes_over_episodes_and_ends_on_a_step(tmp_path: Path) -> None:
    path = record(steer, "Painter-v0", path=tmp_path / "a.mp4", length=6)
    assert brightness(path) == [0, 1, 2, 3, 4, 0, 1, 2]
    path = record(steer, "Painter-v0", path=tmp_path / "a.mp4", length=4)  # replaces the first
    assert brightness(path) == [0, 1, 2, 3, 4]
    path = record(steer, "Painter-v0", path=tmp_path / "a.mp4", length=5, max_episode_steps=2)
    assert brightness(path) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_nothing_is_left_after_a_failure_and_an_older_video_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it failed: RuntimeError: the brush broke"):
        record(steer, "Painter-v0", path=tmp_path / "a.mp4", env_kwargs={"fail_at": 3})
    assert list(tmp_path.iterdir()) == []
    path = record(steer, "Painter-v0", path=tmp_path / "a.mp4")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="it failed: RuntimeError: the brush broke"):
        record(steer, "Painter-v0", path=path, env_kwargs={"fail_at": 3})
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("Painter-v0", {"length": 0}, "the video length is 0, but it must be >= 1"),
        ("Painter-v0", {"seed": -1}, "seed is -1, but it must be >= 0"),
        ("Painter-v0", {"path": "a.avi"}, "a.avi must end in .mp4"),
        ("Painter-v0", {"path": "/dev/null/a.mp4"}, "cannot write /dev/null/a.mp4 (Not a directory)"),
        ("Painter-v0", {"env_kwargs": {"colour": 1}}, "does not take the keyword 'colour'"),
        ("Blind-v0", {}, "cannot be rendered as rgb_array: it has only ansi"),
        ("Pianter-v0", {}, "did you mean 'Painter-v0'?"),
        ("Painter-v0", {"seed": 10**30}, "seed is a number of 25 hexadecimal digits, but it must be <= 2147483647"),
        ("Painter-v0", {"length": 1.5}, "the video length is 1.5, but it must be a whole number"),
        (
            "Painter-v0",
            {"env_kwargs": {"render_mode": "human"}},
            "render_mode human, which opens a window for every env",
        ),
        ("proxima/Recall-v0", {}, "env 'proxima/Recall-v0' has no picture: it can be evaluated, but neither recorded"),
        ("proxima/Recall-v0", {"env_kwargs": {}}, "has no picture"),
    ],
)
def test_bad_input_is_one_line(env_id: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        record(steer, env_id, **{"path": tmp_path / "a.mp4", **options})
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the action has shape \(2,\).*takes Discrete"):
        record(lambda obs: np.zeros(2), "Painter-v0", path=tmp_path / "a.mp4")


def test_a_missing_package_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UsageError, match=r'CartPole-v1.*pip install "gymnasium\[classic-control\]"'):
        record(lambda obs: 0, "CartPole-v1", path=tmp_path / "a.mp4")


def test_frames_are_checked(tmp_path: Path) -> None:
    good = np.zeros((8, 8, 3), np.uint8)
    for bad in (good.astype(float), good[..., 0], good[:4]):
        with pytest.raises(UsageError, match="a frame is"):
            write_mp4(tmp_path / "a.mp4", [good, bad], fps=5)
    with pytest.raises(UsageError, match="has no frames"):
        write_mp4(tmp_path / "a.mp4", [], fps=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["exit 1", "cat > /dev/null; exit 1"])
def test_a_failure_of_ffmpeg_is_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "ffmpeg"
    broken.write_text(f"#!/bin/sh\necho No space left on device >&2\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", lambda: str(broken))
    noise = np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)
    with pytest.raises(UsageError, match=r"cannot write the video .*a\.mp4: ffmpeg failed") as caught:
        write_mp4(tmp_path / "a.mp4", [noise] * 9, fps=5)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == [broken]
    assert capfd.readouterr().err == "No space left on device\n"


@pytest.mark.slow
def test_a_robot_that_runs_stays_in_the_picture(tmp_path: Path) -> None:
    try:
        headless.choose_backend(os.environ.get(headless.VARIABLE))
    except UsageError as error:
        pytest.skip(str(error))
    before = os.environ.get(headless.VARIABLE)
    options: dict[str, Any] = {"width": 96, "height": 64}
    path = record(lambda obs: np.ones(6), "HalfCheetah-v5", path=tmp_path / "a.mp4", env_kwargs=options, length=12)
    frames = iio.imread(path)
    assert frames.shape == (13, 64, 96, 3) and iio.immeta(path, plugin="FFMPEG")["fps"] == 20.0
    assert frames[0].std() > 20 and np.abs(frames[0].astype(int) - frames[-1]).mean() > 1
    assert os.environ.get(headless.VARIABLE) == before
    # The horizon is seen only through the camera that follows: sky above, floor below.
    assert frames[-1][:20].std(axis=(1, 2)).max() < 5 < frames[-1][44:].std()


def test_the_floor_is_drawn_without_end_and_the_physics_stay_the_same() -> None:
    plain, drawn = (gym.make("HalfCheetah-v5", render_mode="rgb_array") for _ in range(2))
    follow(drawn, None)
    assert (
        drawn.unwrapped.model.geom_size[0, :2].tolist() == [0.0, 0.0] != plain.unwrapped.model.geom_size[0, :2].tolist()
    )
    steps = [(env.reset(seed=0), *(env.step(np.ones(6)) for _ in range(30))) for env in (plain, drawn)]
    np.testing.assert_array_equal(steps[0][-1][0], steps[1][-1][0])


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No display and no working back end; the list collects those that were tried."""
    tried: list[str] = []
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", headless.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(headless.sys, "platform", "linux")
    monkeypatch.setattr(headless, "_works", lambda backend: tried.append(backend))
    monkeypatch.setattr(headless.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    return tried


def test_without_opengl_what_to_install_is_one_line(bare_machine: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        headless.choose_backend()
    text = str(caught.value)
    assert bare_machine == ["egl", "osmesa"] and "\n" not in text
    assert "libEGL.so.1, which is missing (apt-get install libegl1" in text
    assert "libOSMesa.so.8, which is missing (apt-get install libosmesa6)" in text


def test_a_choice_of_the_users_is_kept(bare_machine: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unset MUJOCO_GL"):
        headless.choose_backend("osmesa")
    assert bare_machine == ["osmesa"]
    with pytest.raises(UsageError, match="MUJOCO_GL is 'vulkan', but it must be one of egl, osmesa, glfw"):
        headless.choose_backend("vulkan")
    monkeypatch.setattr(headless, "_works", lambda backend: backend == "osmesa")
    assert headless.choose_backend() == "osmesa"
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(headless, "_works", lambda backend: backend != "egl")
    assert headless.choose_backend() == "glfw"


def test_a_driver_that_hangs_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(headless.subprocess, "run", hang)
    assert headless._works.__wrapped__("egl") is False


def test_a_window_needs_a_display_that_answers(bare_machine: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no display to open a window on .*: use --record"):
        watch(steer, "Painter-v0")
    monkeypatch.setenv("DISPLAY", ":4711")
    with pytest.raises(UsageError, match="':4711', which does not answer: use --record"):
        watch(steer, "Painter-v0")


@pytest.mark.slow
def test_the_command_records_into_the_run_and_still_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--num-envs", "2", "--num-steps", "32", "--total-timesteps", "64", "--minibatch-size", "32"]
    assert main(["train", "--env", "Painter-v0", "--compile", "off", *small]) == 0
    capsys.readouterr()
    assert (
        main(["evaluate", "runs/Painter-v0", "--record", "--video-length", "6", "--episodes", "2", "--seed", "3"]) == 0
    )
    first, *numbers = capsys.readouterr().out.splitlines()
    path = Path(first.removeprefix("video "))
    assert path.parent.name == "videos" and path.name == "Painter-v0-step64-seed3-6steps.mp4"
    assert brightness(path) == [0, 1, 2, 3, 4, 0, 1, 2] and "2 episodes" in "".join(numbers)
    assert (path.parent.parent / "config.yaml").is_file()
    assert main(["evaluate", "runs/Painter-v0", "--record", "--json", "--episodes", "2"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)

    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for flags, message in ((["--render"], "no display"), (["--video-length", "6"], "add --record or --render")):
        assert main(["evaluate", "runs/Painter-v0", *flags]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_on_reset_is_called_where_episodes_begin() -> None:
    calls: list[str] = []
    env = gym.make("CartPole-v1", max_episode_steps=5)

    def act(_: Any) -> int:
        calls.append("act")
        return 0

    for _ in _play(env, act, seed=0, length=10, on_reset=lambda: calls.append("reset")):
        pass
    assert calls == ["reset", *["act"] * 5, "reset", *["act"] * 5]


@pytest.mark.parametrize("size", [(240, 256), (210, 160), (224, 240), (50, 86), (51, 87)])
def test_a_game_is_shown_as_it_draws_itself(size: tuple[int, int], tmp_path: Path) -> None:
    path = record(lambda obs: 2, "toy/Screen-v0", path=tmp_path / "a.mp4", env_kwargs={"size": size})
    frames, (height, width) = iio.imread(path), (size[0] + size[0] % 2, size[1] + size[1] % 2)
    assert frames.shape == (4, height, width, 3)  # neither scaled nor padded to blocks of 16
    assert iio.immeta(path, plugin="FFMPEG")["fps"] == 50.0
    sky, ground = frames[-1][: height // 2 - 8].astype(int), frames[-1][height // 2 + 8 :].astype(int)
    assert np.abs(sky - (92, 148, 252)).max() <= 6 and np.abs(ground - 120).max() <= 6


@pytest.mark.slow
def test_the_video_is_of_the_policy_that_is_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--num-envs", "2", "--num-steps", "32", "--total-timesteps", "64", "--minibatch-size", "32"]
    assert main(["train", "--env", "toy/Screen-v0", "--compile", "off", "--name", "screen", *small]) == 0
    capsys.readouterr()
    shown = {}
    for flags in ([], ["--stochastic"]):
        command = ["evaluate", "runs/screen", "--record", "--video-length", "30", "--episodes", "1", *flags]
        assert main(command) == 0
        path = Path(capsys.readouterr().out.splitlines()[0].removeprefix("video "))
        assert path.stem.endswith("-stochastic") == bool(flags)
        shown[bool(flags)] = {round(float(frame[200, 128, 0]) / 60) for frame in iio.imiter(path)}
    assert len(shown[False]) <= 3 and shown[True] == {0, 1, 2, 3}  # a deterministic one: the start, and one per place


def test_a_world_without_a_picture_is_refused_by_the_command_and_evaluated_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--num-envs", "2", "--num-steps", "32", "--total-timesteps", "64", "--minibatch-size", "32"]
    assert main(["train", "--env", "proxima/Recall-v0", "--compile", "off", "--name", "recall", *small]) == 0
    monkeypatch.setattr("proxima.evaluation.video.require_display", lambda: None)
    for flag in ("--record", "--render"):
        capsys.readouterr()
        assert main(["evaluate", "runs/recall", flag]) == 2
        error = capsys.readouterr().err
        assert "has no picture: it can be evaluated" in error and error.count("\n") == 1
    assert main(["evaluate", "runs/recall", "--episodes", "2"]) == 0


def test_a_video_never_takes_the_place_of_anything_but_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").mkdir()
    os.mkfifo(tmp_path / "b.mp4")
    for name in ("a.mp4", "b.mp4"):
        with pytest.raises(UsageError, match="and only a regular file is replaced"):
            record(steer, "Painter-v0", path=tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"a.mp4", "b.mp4"}

"""Atari 2600 games with pixel observations, on ale-py's emulator, with an exact state."""

from typing import Any

import numpy as np
from gymnasium import spaces

from proxima.envs.games.pixels import PixelEnv
from proxima.envs.gymnasium.plain import Plain
from proxima.errors import UsageError


class AtariEnv(PixelEnv):
    """An Atari game with the usual preprocessing.

    `info["score"]` is the game's unclipped score so far, over all lives. When the game is over, `info["game_score"]` is
    that of the complete game. For evaluation by the score, use `end_on_life_loss=False, reward_clip=False`.

    Args:
        game: ale-py's name of the game, such as "pong".
        repeat_action_probability: Probability in each frame that the previous frame's action is repeated.
        full_action_space: All 18 actions, instead of those that the game uses.
        end_on_life_loss: A lost life ends the episode; the next episode continues the game with the next life, until
            the game is over.
        auto_fire: Press the fire button for four frames at the start of each life, in games that have one. Many wait
            for it, and a deterministic policy that does not press it would wait for ever.
        noop_max: See `PixelEnv`; only at the start of a game.
        reward_clip: See `PixelEnv`.
        **pixels: The other options of `PixelEnv`.
    """

    episode_info = ("game_score",)

    def __init__(
        self,
        game: str,
        *,
        repeat_action_probability: float = 0.25,
        full_action_space: bool = False,
        end_on_life_loss: bool = True,
        auto_fire: bool = True,
        noop_max: int = 30,
        reward_clip: bool = True,
        **pixels: Any,
    ) -> None:
        super().__init__(noop_max=noop_max, reward_clip=reward_clip, **pixels)
        try:
            import ale_py
            from ale_py import roms
        except ImportError as error:
            raise UsageError(f'Atari needs ale-py ({error}): pip install "proxima-rl[atari]"') from error
        if not 0.0 <= repeat_action_probability <= 1.0:
            raise UsageError(f"repeat_action_probability is {repeat_action_probability}; it must be in [0, 1]")
        if game not in roms.get_all_rom_ids():
            raise UsageError(f"ale-py has no game {game!r}; `proxima envs ALE` lists those it has")
        self.end_on_life_loss = end_on_life_loss
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale: Any = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", repeat_action_probability)
        self._rom = roms.get_rom_path(game)
        self._load(seed=0)
        self._actions = self._ale.getLegalActionSet() if full_action_space else self._ale.getMinimalActionSet()
        self.action_space = spaces.Discrete(len(self._actions))
        self._fire = ale_py.Action.FIRE if auto_fire and ale_py.Action.FIRE in self._actions else None
        self._seeded = False
        self._goes_on = False  # the last episode ended with the loss of a life, not with the game
        self._lives = 0
        self._score = 0.0

    def _load(self, seed: int) -> None:
        self._ale.setInt("random_seed", seed)  # takes effect when the game is loaded
        self._ale.loadROM(self._rom)

    def _start(self, fresh: bool) -> bool:
        if fresh or not self._seeded:
            self._load(int(self.np_random.integers(2**31)))
            self._seeded, self._goes_on = True, False
        goes_on, self._goes_on = self._goes_on, False
        if goes_on:
            self._score += self._ale.act(self._actions[0])
            goes_on = not self._ale.game_over()
        if not goes_on:
            self._ale.reset_game()
            self._score = 0.0
        self._lives = self._ale.lives()
        return not goes_on

    def _advance(self, action: int) -> tuple[float, bool]:
        reward = float(self._ale.act(self._actions[action]))
        self._score += reward
        lives, over = self._ale.lives(), self._ale.game_over()
        lost, self._lives = lives < self._lives and not over, lives
        self._goes_on = self.end_on_life_loss and lost
        if lost and not self._goes_on:
            reward += self._serve()
            over = self._ale.game_over()
        return reward, over or self._goes_on

    def _serve(self) -> float:
        if self._fire is None:
            return 0.0
        # Four frames, since each may repeat the action of the one before (repeat_action_probability).
        reward = float(sum(self._ale.act(self._fire) for _ in range(4)))
        self._score += reward
        return reward

    def _screen(self) -> np.ndarray:
        return self._ale.getScreenRGB()

    def _look(self) -> np.ndarray:
        return self._ale.getScreenGrayscale() if self.grayscale else self._screen()

    def _info(self) -> dict[str, Any]:
        info = {"score": self._score, "life": self._lives}
        return info | {"game_score": self._score} if self._ale.game_over() else info

    def _get_game(self) -> Plain:
        console = self._ale.cloneState(include_rng=True).serialize()
        return {"console": console, "counters": [self._seeded, self._goes_on, self._lives, self._score]}

    def _set_game(self, state: Plain) -> None:
        from ale_py import ALEState

        self._ale.restoreState(ALEState(state["console"]))
        self._seeded, self._goes_on, self._lives, self._score = state["counters"]

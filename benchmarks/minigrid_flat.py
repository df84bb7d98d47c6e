"""MiniGrid's DoorKey with the agent's view as one vector, for other_packages.py: importing it registers the id."""

import gymnasium as gym
from gymnasium.wrappers import FlattenObservation
from minigrid.wrappers import ImgObsWrapper


def make(**kwargs: object) -> gym.Env:
    """The 7 x 7 x 3 view without direction and mission, flattened to 147 numbers."""
    return FlattenObservation(ImgObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0", **kwargs)))


gym.register("MiniGrid-DoorKey-5x5-Flat-v0", entry_point=make)

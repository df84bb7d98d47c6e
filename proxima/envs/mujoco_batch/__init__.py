"""Gymnasium's MuJoCo tasks on `mujoco.batch`: many simulations on native threads, bit-exact to Gymnasium."""

from proxima.envs.mujoco_batch.env import MujocoBatchEnv
from proxima.envs.mujoco_batch.tasks import can_serve, served_ids, why_not

__all__ = ["MujocoBatchEnv", "can_serve", "served_ids", "why_not"]

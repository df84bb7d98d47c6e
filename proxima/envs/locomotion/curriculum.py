"""Which level of the terrain a robot starts on: by the distance it walked, or by the success of all robots."""

from torch import Tensor, arange, device, int64, stack, where, zeros, zeros_like

from proxima.envs.locomotion.settings import Ground


def followed(ideal: Tensor, command: Tensor, dt: float) -> Tensor:
    """Place and direction `[N, 3]` of robots that follow their commands exactly, one step after `ideal`."""
    forward, sideways, turn = (dt * command).unbind(1)
    x, y, yaw = ideal.unbind(1)
    cos, sin = yaw.cos(), yaw.sin()
    return stack((x + cos * forward - sin * sideways, y + sin * forward + cos * sideways, yaw + turn), 1)


def by_distance(
    level: Tensor, walked: Tensor, commanded: Tensor, fell: Tensor, anywhere: Tensor, ground: Ground
) -> Tensor:
    """Levels `[N]` after an episode: up after half a tile, down after less than half of what was commanded or a fall.

    Distances are from the start. Past the top it is `anywhere` `[N]`, a random level (Rudin et al. 2022). A robot that
    `fell` after half a tile stays: it would go up on stairs that lead down.
    """
    far = walked > 0.5 * ground.tile_size
    up, down = far & ~fell, ~far & (fell | (walked < 0.5 * commanded))
    level = (level + up.long() - down.long()).clamp(min=0)
    return where(level >= ground.levels, anywhere, level)


class BySuccess:
    """The highest level of every kind of ground, from the success rate of the episodes on it.

    Counts are sums over robots, without synchronisation. State: `highest`, `episodes` and `successes`, `[K]` int64.
    """

    def __init__(self, num_kinds: int, ground: Ground, device: device | str = "cpu") -> None:
        self.ground, self._kinds = ground, arange(num_kinds, device=device)
        self.table = zeros(3, num_kinds, dtype=int64, device=device)
        """Rows: highest level, episodes since it changed, and how many of these succeeded."""

    def record(self, kind: Tensor, level: Tensor, ended: Tensor, success: Tensor) -> None:
        """Count the episodes that ended on the highest level of their `kind` `[N]`, and move it if it is time."""
        ground, (highest, episodes, successes) = self.ground, self.table.unbind()
        counts = ended & (level >= highest[kind])
        here = (kind[:, None] == self._kinds) & counts[:, None]  # [N, K]
        episodes, successes = episodes + here.sum(0), successes + (here & success[:, None]).sum(0)
        due = episodes >= ground.episodes
        better = due & (successes >= ground.raise_at * episodes)
        worse = due & (successes < ground.lower_at * episodes)
        highest = (highest + better.long() - worse.long()).clamp(0, ground.levels - 1)
        self.table = stack((highest, where(due, 0, episodes), where(due, 0, successes)))

    def levels(self, kind: Tensor, draw: Tensor) -> Tensor:
        """Levels `[N]` to start on: half of the robots on the highest, the others below, by `draw` `[N]` in 0..1."""
        highest = self.table[0][kind]
        return where(draw < 0.5, (2.0 * draw * highest).long(), highest)

    def clear(self) -> None:
        """Begin again."""
        self.table = zeros_like(self.table)

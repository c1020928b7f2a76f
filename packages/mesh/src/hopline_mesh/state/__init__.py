"""The saved state of a watch: a folder of checkpoints, and a history of snapshots."""

from hopline_mesh.state.folder import StateFolder
from hopline_mesh.state.record import Seen

__all__ = ["Seen", "StateFolder"]

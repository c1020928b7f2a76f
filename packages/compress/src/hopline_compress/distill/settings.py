"""Settings of a student: its shape, its training, and what it reads of the graph around a node."""

from __future__ import annotations

from dataclasses import dataclass

from hopline.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """Settings of a student; the defaults measured best over three graphs, on splits that are not reported.

    Attributes:
        hidden: width of each hidden layer. layers: linear layers, 1 or more.
        dropout: share of hidden units, and of inputs, that a training step leaves out.
        lr, weight_decay: of Adam.
        epochs: training steps, at most. patience: epochs without a better validation score until it stops.
        batch: rows of a step, drawn again for each.
        temperature: the teacher's probabilities are raised to 1 / temperature and normalised.
        label_weight: share of the loss that is cross entropy with known labels; the rest is divergence
            from the teacher.
        seed: of the initial weights, the dropout and the order of rows.
        structure: also give it features diffused over the graph; without, it is a plain MLP, as in GLNN.
        width: features of more columns are reduced to this many strongest directions, before they are
            diffused and before the student learns from them; 0 leaves them unchanged.
        restart: share of the own row that a node keeps in each round of the diffusion (personalised
            PageRank's alpha).
        tolerance: the diffusion stops once no value changes by more.
    """

    hidden: int = 128
    layers: int = 2
    dropout: float = 0.5
    lr: float = 0.01
    weight_decay: float = 1e-4
    epochs: int = 300
    patience: int = 60
    batch: int = 1024
    temperature: float = 1.0
    label_weight: float = 0.1
    seed: int = 0
    structure: bool = True
    width: int = 128
    restart: float = 0.1
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "epochs", "patience", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: must be at least 1")
        for name in ("lr", "temperature", "tolerance"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: must be above 0")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}: must be from 0 to below 1")
        if not 0 <= self.label_weight <= 1:
            raise ConfigError(f"label_weight is {self.label_weight}: must be from 0 to 1")
        if not 0 < self.restart <= 1:
            raise ConfigError(f"restart is {self.restart}: must be above 0 and at most 1")
        for name in ("weight_decay", "width"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: must be 0 or more")

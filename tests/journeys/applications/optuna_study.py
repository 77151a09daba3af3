"""A study of Optuna, which keeps its trials in SQLite by SQLAlchemy."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import optuna
from counting import Writes, main


def begin(path: str, writes: Writes) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    writes.do(lambda: optuna.create_study(storage=f"sqlite:///{path}", study_name="first", direction="minimize"))
    search(path, "first", writes, trials=3)


def work(path: str, writes: Writes) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search(path, "first", writes, trials=6)
    writes.do(lambda: optuna.create_study(storage=f"sqlite:///{path}", study_name="second", direction="maximize"))
    search(path, "second", writes, trials=3)
    writes.do(lambda: optuna.delete_study(storage=f"sqlite:///{path}", study_name="second"))


def search(path: str, name: str, writes: Writes, *, trials: int) -> None:
    sampler = optuna.samplers.RandomSampler(seed=3)
    study = optuna.load_study(storage=f"sqlite:///{path}", study_name=name, sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        x, kind = trial.suggest_float("x", -10, 10), trial.suggest_categorical("kind", ["a", "b"])
        trial.report(x, step=0)
        trial.report(x / 2, step=1)
        trial.set_user_attr("words", {"x": x, "kind": kind})
        return x * x if trial.number % 5 else float("nan")

    writes.do(lambda: study.optimize(objective, n_trials=trials))


if __name__ == "__main__":
    main({"begin": begin, "work": work})

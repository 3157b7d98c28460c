"""The command `adaptmr`: run experiments, look at runs, ask and fill memories, check data and machine."""

from adaptmr.cli.command import main
from adaptmr.cli.experiments import (
    execute_notebook,
    experiment_names,
    gather_params,
    project_root,
    run_experiment,
)
from adaptmr.cli.replaying import read_run_config, replay_run

__all__ = [
    "execute_notebook",
    "experiment_names",
    "gather_params",
    "main",
    "project_root",
    "read_run_config",
    "replay_run",
    "run_experiment",
]

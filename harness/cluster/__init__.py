"""Commands on many machines: batch scripts, Slurm, tasks on this machine, and what became of them.

Nothing here trains or reads a study: a task runs a `harness` command, as a user would.
"""

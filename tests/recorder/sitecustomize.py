"""Python imports this at its start from PYTHONPATH: the processes that tests start record forbidden imports too."""

import import_recorder

import_recorder.install()

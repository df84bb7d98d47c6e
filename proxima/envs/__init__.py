"""Vector environments with one interface (`contract.py`); only `make.py` chooses a back end."""

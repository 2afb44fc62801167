"""Chaos: real processes are killed, frozen, cut off and emptied while clients follow; then everything is checked.

scale.py      how long things take          schedule.py  what happens, from the seed alone
mix.py        what is asked                 part.py      one process, its log, and how it is ended
stage.py      all processes                 *_faults.py  what is done to them
clients.py    who follows                   producers.py who asks
evidence.py   what is known afterwards      check_*.py   what must be true of it
report.py     the table                     run.py       one run from start to end
"""

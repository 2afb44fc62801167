"""A scripted, OpenAI-compatible model server: everything runs against it with no key and no network.

Start it with ``python -m demo --port 0``; it prints the address it listens on. It imports nothing else of this project
and speaks real HTTP, so that a test or a benchmark drives the whole path through real sockets.

Where to read on: `controls` (what brackets in a text make it do), `models` (what the model's name makes it do, faults
included), `script` (what it answers otherwise), `validation` (what it refuses), `app` (its routes, also those by which
tests look inside).
"""

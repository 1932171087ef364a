"""What must work where only the wheel and its two dependencies are installed; run by `make wheel`, not by pytest."""

from __future__ import annotations

import tempfile
from pathlib import Path

import turnfold
from turnfold import SqlRepository, Summarizer, TokenBudget, Turn

assert "site-packages" in turnfold.__file__, turnfold.__file__

with tempfile.TemporaryDirectory() as folder:
    engine = turnfold.create_engine(f"sqlite:///{Path(folder) / 'smoke.db'}")
    turnfold.migrate(engine)
    store = SqlRepository(engine)
    turns = store.append_turns("smoke", [Turn("user", f"We decided on plan {number}.") for number in range(100)])
    stats = turnfold.compact_if_needed("smoke", store, Summarizer(turnfold.extractive), TokenBudget(total=500))
    assert stats is not None
    assert stats["turns_compacted"] == 84
    assert store.get_session_turns("smoke") == turns
    assert turnfold.assemble_context("smoke", store, TokenBudget(total=500)).token_count <= 500
    engine.dispose()
print("the wheel works in an empty environment")

"""Events a second that a caller can put in, as the API's own function does it."""

import time

from memorybench.place import Place
from memorybench.scale import events
from memorybench.words import Language

_BATCH = 500


async def ingest(at: Place, rows: int) -> dict[str, float]:
    """Rows a second in batches of 500, one after another, indexed and (with a wheel) embedded."""
    language = Language(5)
    caller = at.tenant(900_000)
    batches = [
        events(list(language.conversation(f"g{start}", min(_BATCH, rows - start))))
        for start in range(0, rows, _BATCH)
    ]
    if at.embedder is not None:
        await at.embedder.embed(["the weights are read once"])
    began = time.perf_counter()
    for batch in batches:
        await at.timeline.ingest(caller, batch)
    seconds = time.perf_counter() - began
    [(vectors,)] = at.execute(
        "SELECT count(*) FROM pal.memory_vectors WHERE tenant_id = %s", caller.tenant_id
    )
    return {
        "rows": rows,
        "seconds": seconds,
        "rows_a_second": rows / seconds,
        "vectors": float(str(vectors)),
    }

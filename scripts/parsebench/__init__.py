"""The benchmarks of `scripts/bench parse`: one module for each input, with how it is made, our readers and the peer.

A module of it (folded.py is the shortest) has three kinds of functions, and says in INPUTS what they are for:

    def generate(out: Path, scale: float) -> None     writes the input, at this share of its full size
    def ours(path: Path) -> Look                      our way from the file to summaries in memory
    def peer(path: Path) -> Look                      theirs

Each reader runs in a process of its own, `python -m parsebench MODULE:FUNCTION FILE`, and imports inside of itself what
it needs. It is measured from the start of the process to its return. The function that it returns, the Look, gives
the results in a form that can be compared, a dict that JSON can hold; that is not measured. Results are equal when ours
hold all that the peer's do: integers and texts exactly, decimals to nine digits. `digest` makes one number of a table.
"""

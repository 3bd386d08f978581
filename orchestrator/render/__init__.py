"""Report -> str. A renderer is a module with `render(report)`; its line here gives the file's name in the report
folder."""

RENDERERS = {
    "html": ("index.html", "orchestrator.render.html"),
    "markdown": ("report.md", "orchestrator.render.markdown"),
}

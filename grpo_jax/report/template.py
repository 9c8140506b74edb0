"""The page around a report's contents: a template for `str.format`, with its style."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light;
        --ink: #1f2630; --soft: #5c6470; --line: #e3e6ea; --paper: #fff; --ground: #f6f7f9; }}
body {{ margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }}
main {{ max-width: 1120px; margin: 0 auto; padding: 36px 24px 64px; }}
h1 {{ font-size: 25px; margin: 0; font-weight: 650; overflow-wrap: anywhere; }}
h2 {{ font-size: 17px; margin: 40px 0 12px; font-weight: 650; }}
h3 {{ font-size: 14px; margin: 0 0 6px; font-weight: 600; }}
.subtitle, figcaption, .note {{ color: var(--soft); }}
.subtitle {{ margin: 4px 0 24px; }}
.note {{ font-size: 13px; margin-top: 28px; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; }}
.tile, figure, table, details {{
  background: var(--paper); border: 1px solid var(--line); border-radius: 8px; }}
.tile {{ padding: 12px 16px; }}
.tile p {{ margin: 0; font-size: 12.5px; color: var(--soft); }}
.tile strong {{ font-size: 19px; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.tile .before {{ color: var(--soft); font-weight: 400; font-size: 15px; }}
.grid {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)); gap: 16px; }}
figure {{ margin: 0; padding: 16px 18px; }}
figure svg {{ width: 100%; height: auto; display: block; }}
svg text {{ font-family: inherit !important; }}
figcaption {{ font-size: 13px; margin-top: 8px; }}
table {{
  width: 100%; border-collapse: separate; border-spacing: 0; margin: 6px 0 22px; table-layout: fixed; }}
th, td {{ text-align: left; vertical-align: top; padding: 8px 12px; font-size: 13px; }}
th {{ color: var(--soft); font-weight: 500; }}
tbody td {{ border-top: 1px solid var(--line); }}
th:nth-child(n+3), td:nth-child(n+3) {{ width: 76px; font-variant-numeric: tabular-nums; }}
td bdi {{ display: block; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 240px; overflow-y: auto;
         font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
.up {{ color: #35714c; }} .down {{ color: #a8432e; }}
details {{ padding: 10px 16px; }} summary {{ cursor: pointer; }}
pre {{ font-size: 12.5px; overflow-x: auto; }}
</style>
</head>
<body>
<main>
<h1>{heading}</h1>
<p class="subtitle">{subtitle}</p>
{body}
</main>
</body>
</html>
"""

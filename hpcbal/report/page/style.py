"""The page's style and its few lines of script, both inside the page: nothing is fetched."""

from __future__ import annotations

from hpcbal.report.drawing.shapes import HAIR, INK, QUIET
from hpcbal.report.drawing.svg import FONTS

CSS = f"""
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: #fff; color: {INK}; font: 15px/1.5 {FONTS}; -webkit-text-size-adjust: 100%; }}
main {{ max-width: 1072px; margin: 0 auto; padding: 28px 16px 56px; }}
h1 {{ font-size: 28px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 19px; line-height: 1.3; margin: 44px 0 2px; }}
p {{ margin: 4px 0 10px; }}
.quiet {{ color: {QUIET}; }}
.caption {{ color: {QUIET}; max-width: 46em; margin-bottom: 14px; }}
.state {{ display: inline-block; padding: 1px 10px; border-radius: 11px; font-size: 14px; font-weight: 600; }}
.good {{ background: #d9f2e6; color: #00563b; }}
.bad {{ background: #fbe3d6; color: #8a3500; }}
.plain {{ background: #e6e9ec; color: {INK}; }}
.cards {{ display: grid; gap: 12px; margin: 22px 0 0; }}
.cards {{ grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); }}
.card {{ border: 1px solid {HAIR}; border-radius: 8px; padding: 10px 14px; }}
.card b {{ display: block; font-size: 23px; line-height: 1.3; font-weight: 600; }}
.card span {{ color: {QUIET}; font-size: 13px; line-height: 1.35; display: block; overflow-wrap: anywhere; }}
figure {{ margin: 0; }}
svg.chart {{ display: block; width: 100%; height: auto; }}
svg.chart text {{ font-family: {FONTS}; }}
.narrow {{ display: none; }}
@media (max-width: 899px) {{
  .wide {{ display: none; }}
  .narrow {{ display: block; max-width: 560px; }}
  h1 {{ font-size: 23px; }}
  h2 {{ font-size: 18px; margin-top: 36px; }}
  .cards {{ grid-template-columns: repeat(2, 1fr); gap: 8px; }}
  .card {{ padding: 8px 10px; }}
  .card b {{ font-size: 19px; }}
  .minor {{ display: none; }}
}}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
th {{ text-align: left; font-weight: 600; border-bottom: 1px solid {QUIET}; padding: 4px 12px 4px 0; }}
td {{ border-bottom: 1px solid {HAIR}; padding: 5px 12px 5px 0; vertical-align: top; }}
td {{ overflow-wrap: anywhere; }}
td.why {{ overflow-wrap: normal; }}
th.number, td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
td.number, td.slot {{ white-space: nowrap; }}
tr[data-job] {{ cursor: pointer; }}
tr.on td {{ background: #fff3c4; }}
.swatch {{ display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 7px; }}
.bar {{ display: inline-block; height: 9px; background: #0072b2; }}
ul {{ margin: 4px 0 12px; padding-left: 20px; }}
details {{ margin: 4px 0; }}
summary {{ cursor: pointer; color: {QUIET}; }}
pre {{ background: #f6f8fa; padding: 10px; overflow-x: auto; font-size: 12px; line-height: 1.4; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; font-size: 14px; margin: 8px 0; }}
dt {{ color: {QUIET}; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
input {{ font: inherit; padding: 5px 9px; border: 1px solid {QUIET}; border-radius: 6px; }}
input {{ width: 100%; max-width: 320px; }}
svg [data-job] {{ cursor: pointer; }}
body.following svg [data-job]:not(.on) {{ opacity: 0.13; }}
@media print {{ main {{ padding: 0; }} h2 {{ break-after: avoid; }} figure {{ break-inside: avoid; }} }}
""".strip()

# A click on a job, in a chart or in the table, follows it through all of them; a second click ends that.
SCRIPT = """
const marked = document.querySelectorAll("[data-job]");
let followed = null;
document.addEventListener("click", (event) => {
  const hit = event.target.closest("[data-job]");
  if (!hit && !event.target.closest("svg")) return;
  followed = hit && hit.dataset.job !== followed ? hit.dataset.job : null;
  document.body.classList.toggle("following", followed !== null);
  for (const element of marked) element.classList.toggle("on", element.dataset.job === followed);
});
const search = document.getElementById("search");
if (search) search.addEventListener("input", () => {
  const wanted = search.value.toLowerCase();
  for (const row of document.querySelectorAll("#jobs tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
""".strip()

#include "models/report/page_style.h"

namespace dtrun::models {
namespace {

constexpr char kLight[] = R"(
:root {
  --page: #ffffff; --card: #f6f8fa; --text: #1f2328; --quiet: #59636e; --grid: #d8dee4;
  --axis: #8c959f; --first: #0072b2; --second: #d55e00; --third: #b5508f;
})";

constexpr char kDark[] = R"(
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #0d1117; --card: #161b22; --text: #e6edf3; --quiet: #9aa4af; --grid: #2b323b;
    --axis: #6e7681; --first: #56b4e9; --second: #f0953f; --third: #e3a1c8;
  }
})";

constexpr char kPage[] = R"(
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 48px; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 16px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 32px 0 12px; }
h3 { font-size: 1rem; margin: 0 0 4px; }
.results { display: flex; flex-wrap: wrap; gap: 12px; margin: 0; }
.results div { background: var(--card); border-radius: 8px; padding: 10px 16px; min-width: 0; }
.results dt { color: var(--quiet); font-size: 0.85rem; }
.results dd {
  margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
.figures {
  display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr));
}
.beside { align-items: start; grid-template-columns: minmax(320px, 2fr) minmax(0, 3fr); }
@media (max-width: 760px) {
  main { padding: 14px 10px 32px; }
  .beside { grid-template-columns: minmax(0, 1fr); }
}
figure {
  margin: 0; background: var(--card); border-radius: 8px; padding: 12px; min-width: 0;
  break-inside: avoid;
}
figcaption { color: var(--quiet); font-size: 0.85rem; }
.legend {
  list-style: none; margin: 0 0 4px; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 16px;
  font-size: 0.85rem;
}
.number { font-variant-numeric: tabular-nums; font-weight: 600; }
.swatch { vertical-align: middle; }
.patch { display: inline-block; width: 12px; height: 12px; vertical-align: -1px; }
.scroll { overflow: auto; max-height: 560px; }
table { border-collapse: collapse; font-size: 0.9rem; width: 100%; }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--grid); text-align: left; }
th {
  position: sticky; top: 0; background: var(--page); color: var(--quiet); font-weight: 600;
  vertical-align: bottom;
}
td { white-space: nowrap; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { font-weight: 400; }
.settings {
  display: grid; grid-template-columns: minmax(7em, max-content) minmax(0, 1fr); gap: 4px 16px;
  margin: 0; font-size: 0.9rem;
}
.settings dt { color: var(--quiet); }
.settings dd { margin: 0; overflow-wrap: anywhere; }
)";

constexpr char kDrawings[] = R"(
.drawing { display: block; width: 100%; max-width: 460px; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--quiet); font-variant-numeric: tabular-nums; }
svg .label { fill: var(--text); }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
path { fill: none; stroke-width: 2; stroke-linejoin: round; }
path.first { stroke: var(--first); }
path.second { stroke: var(--second); stroke-dasharray: 6 3; }
path.ideal { stroke: var(--axis); stroke-width: 1.5; stroke-dasharray: 2 3; }
path.cross { stroke-dasharray: none; stroke-width: 2.5; }
.mark.first { fill: var(--first); } .mark.second { fill: var(--second); }
.touch { fill: transparent; }
.compute { fill: var(--first); background: var(--first); }
.exposed { fill: var(--second); background: var(--second); }
.input { fill: var(--third); background: var(--third); }
)";

// Browsers leave out backgrounds when they print, unless told that one says something.
constexpr char kPrint[] = R"(
@media print {
  body { font-size: 12px; }
  main { max-width: none; padding: 0; }
  .scroll { max-height: none; overflow: visible; }
  figure, .results div { border: 1px solid var(--grid); }
  tr { break-inside: avoid; }
  .patch { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)";

}  // namespace

std::string PageStyle() { return std::string(kLight) + kDark + kPage + kDrawings + kPrint; }

}  // namespace dtrun::models

// Small line charts as SVG.

const SPACE = "http://www.w3.org/2000/svg";
const MARGIN = { left: 34, right: 8, top: 8, bottom: 18 };

function element(name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(value) {
  return value >= 10000 ? `${+(value / 1000).toFixed(1)}k` : `${+value.toFixed(2)}`;
}

// Draws lines into an SVG. A series is {points: [[x, y], …], color, dash, dots, bars: [[x, low, high]]}.
export function draw(svg, series, { low, high, format = short, last, shaded = [], cursor = null }) {
  const width = svg.clientWidth || 360, height = svg.clientHeight || 104;
  const right = Math.max(last ?? 0, 1e-9);
  const x = value => MARGIN.left + (width - MARGIN.left - MARGIN.right) * value / right;
  const y = value =>
    MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (high - value) / (high - low);
  const parts = [];
  for (const [from, to] of shaded) {
    parts.push(element("rect", {
      class: "taken", x: x(from), y: MARGIN.top, width: Math.max(1, x(to) - x(from)),
      height: height - MARGIN.top - MARGIN.bottom,
    }));
  }
  for (const value of [low, (low + high) / 2, high]) {
    parts.push(element("line", {
      class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value),
    }));
    parts.push(element("text", { x: MARGIN.left - 5, y: y(value) + 3, "text-anchor": "end" },
      format(value)));
  }
  parts.push(element("text", { x: MARGIN.left, y: height - 4 }, "0"));
  parts.push(element("text", { x: width - MARGIN.right, y: height - 4, "text-anchor": "end" },
    short(right)));
  for (const { points, color, dash, dots, bars = [] } of series) {
    for (const [at, from, to] of bars) {
      parts.push(element("line", { x1: x(at), x2: x(at), y1: y(from), y2: y(to), stroke: color,
        "stroke-width": 1, opacity: 0.5 }));
    }
    const path = points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" ");
    const look = { class: "line", points: path, stroke: color };
    if (dash) look["stroke-dasharray"] = dash;
    parts.push(element("polyline", look));
    if (dots) {
      for (const [px, py] of points) {
        parts.push(element("circle", { cx: x(px), cy: y(py), r: 2.5, fill: color }));
      }
    }
  }
  if (cursor !== null) {
    parts.push(element("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: MARGIN.top,
      y2: height - MARGIN.bottom }));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
}

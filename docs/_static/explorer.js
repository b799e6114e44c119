// The page docs/explorer.md: scores that one drags, and the weights that mappings.js finds.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const host = document.getElementById("regmax-explorer");
  if (!host) return;
  const { solve } = window.regmaxMappings;

  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"];
  // label, base, penalty, sliders, and the call; pnorm has no formula with a cap
  const BOUNDS = ["total", "cap"];
  const MAPPINGS = {
    softmax: ["softmax", "entropy", "none", BOUNDS, "softmax(x"],
    sparsemax: ["sparsemax", "gini", "none", BOUNDS, "sparsemax(x"],
    entmax15: ["1.5-entmax", "entmax15", "none", BOUNDS, "entmax15(x"],
    entmax: ["α-entmax", "tsallis", "none", ["alpha", ...BOUNDS], "entmax(x, alpha=ALPHA"],
    pnormmax: ["pnormmax", "pnorm", "none", ["p"], "pnormmax(x, p=P"],
    fusedmax: ["fusedmax", "gini", "tv", ["lam", ...BOUNDS], "fusedmax(x, lam=LAM"],
    oscarmax: ["oscarmax", "gini", "oscar", ["lam", ...BOUNDS], "oscarmax(x, lam=LAM"],
    "entropy+tv": ["fused softmax: entropy + λ·tv", "entropy", "tv", ["lam", ...BOUNDS]],
    "tsallis+tv": ["fused entmax: tsallis + λ·tv", "tsallis", "tv", ["lam", "alpha", ...BOUNDS]],
    "pnorm+tv": ["fused pnormmax: pnorm + λ·tv", "pnorm", "tv", ["lam", "p"]],
    "entropy+oscar": ["clustered softmax: entropy + λ·oscar", "entropy", "oscar", ["lam", ...BOUNDS]],
    "tsallis+oscar": ["clustered entmax: tsallis + λ·oscar", "tsallis", "oscar", ["lam", "alpha", ...BOUNDS]],
  };
  // sign, smallest, largest, step, and what the slider's number stands for
  const exp10 = (v) => 10 ** v;
  const same = (v) => v;
  const SLIDERS = {
    gamma: ["γ", -1.5, 1.5, 0.01, exp10, Math.log10],
    lam: ["λ", 0, 1, 0.005, same, same],
    alpha: ["α", 1, 4, 0.01, same, same],
    p: ["p", 1.05, 2, 0.01, same, same],
    total: ["k", 0.25, 4, 0.05, same, same],
    cap: ["u", 0.05, 1, 0.01, same, same],
  };
  const LIMIT = 2; // scores lie in [-2, 2]
  const state = { mapping: "fusedmax", x: [0.15, 0, 0.95, 1.2, 1.05, 0.55], over: "gamma" };
  const h = { gamma: 1, lam: 0.1, alpha: 1.5, p: 1.5, total: 1, cap: 1 };

  /** The numbers for n scores: n caps sum to the total or more. */
  const fitting = (n, changed) => {
    const now = { ...h, ...changed };
    if (!used().includes("cap")) return { ...now, total: 1, cap: 1 };
    const total = Math.min(now.total, n);
    return { ...now, total, cap: Math.max(now.cap, Math.ceil((100 * total) / n - 1e-9) / 100) };
  };
  const mapped = (x, changed) => {
    const [, base, penalty] = MAPPINGS[state.mapping];
    return solve(base, penalty, x, fitting(x.length, changed));
  };
  const number = (v, digits = 3) =>
    v === 0 ? "0" : Math.abs(v) < 0.5 * 10 ** -digits ? `<${10 ** -digits}` : v.toFixed(digits).replace("-", "−");
  const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
  const used = () => ["gamma", ...MAPPINGS[state.mapping][3]];

  host.innerHTML = `
    <div class="explorer-controls">
      <label>mapping <select data-id="mapping">${Object.entries(MAPPINGS)
        .map(([key, [label]]) => `<option value="${key}">${label}</option>`)
        .join("")}</select></label>
      ${Object.entries(SLIDERS)
        .map(
          ([key, [sign, low, high, step]]) => `<label data-for="${key}">${sign}
            <input type="range" data-id="${key}" min="${low}" max="${high}" step="${step}">
            <output data-id="${key}-value"></output></label>`,
        )
        .join("")}
      <span class="explorer-buttons">
        <button type="button" data-id="fewer">− score</button>
        <button type="button" data-id="more">+ score</button>
        <button type="button" data-id="random">random</button>
        <button type="button" data-id="three">three scores</button>
      </span>
    </div>
    <output class="explorer-answer" data-id="answer"></output>
    <div class="explorer-figures">
      <figure><svg data-id="scores" viewBox="0 0 480 420" role="group"
        aria-label="scores, and their weights below"></svg>
        <figcaption>Above, the scores: drag a dot, or select it and press ↑ or ↓. Dashed: the
        threshold. Bars: scores after the penalty. Below, the weights, with sum k, and dashed their
        cap u; a letter marks a group.</figcaption></figure>
      <figure><div class="explorer-over" data-id="over" role="group" aria-label="path over"></div>
        <svg data-id="path" viewBox="0 0 480 300" role="img"></svg>
        <figcaption>Each line is a weight. Drag along the axis to change the
        number.</figcaption></figure>
      <figure data-id="triangle-figure"><div class="explorer-plane"><canvas data-id="regions"
        width="480" height="400"></canvas><svg data-id="triangle" viewBox="0 0 480 400" role="group"
        aria-label="three scores in the plane, and their weights in the triangle"></svg></div>
        <figcaption>The large dot: three scores, as a point of the plane. The small one: their
        weights over k, as a point of the triangle. Colours: which weights are positive; a strong colour: two are
        equal.</figcaption></figure>
    </div>
    <pre class="explorer-code"><code data-id="code"></code></pre>`;
  const part = Object.fromEntries(
    [...host.querySelectorAll("[data-id]")].map((element) => [element.dataset.id, element]),
  );

  // A point of an SVG under a pointer.
  const at = (svg, event) => {
    const { left, top, width } = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / width;
    return [(event.clientX - left) * scale, (event.clientY - top) * scale];
  };
  /** Calls `move` with the points of a drag that starts on `element`. */
  const onDrag = (element, svg, move) => {
    element.addEventListener("pointerdown", (event) => {
      element.setPointerCapture(event.pointerId);
      element.focus?.({ preventScroll: true });
      event.preventDefault();
      move(at(svg, event));
    });
    element.addEventListener("pointermove", (event) => {
      if (element.hasPointerCapture(event.pointerId)) move(at(svg, event));
    });
  };
  const KEYS = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };
  const onArrows = (element, move) =>
    element.addEventListener("keydown", (event) => {
      const step = KEYS[event.key] ?? { PageUp: [0, 10], PageDown: [0, -10] }[event.key];
      if (!step) return;
      event.preventDefault();
      move(step.map((v) => v * 0.05));
    });
  const dot = (label) =>
    `<g class="explorer-dot" role="slider" tabindex="0" aria-label="${label}" aria-valuemin="${-LIMIT}"
      aria-valuemax="${LIMIT}"><circle class="explorer-reach" r="24"/><circle class="explorer-knob"
      r="9"/></g>`;

  // Scores and weights.
  const TOP = 20, ZERO = 210, BASE = 390, TALL = 130;
  const yOf = (score) => TOP + ((LIMIT - score) / (2 * LIMIT)) * (ZERO - TOP);
  const xOf = (i) => 44 + ((i + 0.5) * 426) / state.x.length;
  let dots = [];
  function setScore(i, value) {
    state.x[i] = clamp(Math.round(value * 100) / 100, -LIMIT, LIMIT);
    draw();
  }
  function build() {
    part.scores.innerHTML = `<g data-part="under"></g>${state.x.map((_, i) => dot(`score ${i + 1}`)).join("")}`;
    dots = [...part.scores.querySelectorAll(".explorer-dot")];
    dots.forEach((element, i) => {
      onDrag(element, part.scores, ([, y]) =>
        setScore(i, LIMIT - ((y - TOP) / (ZERO - TOP)) * 2 * LIMIT));
      onArrows(element, ([dx, dy]) => setScore(i, state.x[i] + dx + dy));
    });
  }
  /** A letter for each group of two or more positive weights. */
  function letters({ y, groups }) {
    const found = y.map(() => "");
    groups
      .filter((members) => members.length > 1 && y[members[0]] > 0)
      .forEach((members, k) => members.forEach((i) => (found[i] = "ABCD"[k])));
    return found;
  }
  function drawScores(answer) {
    const { y, z, threshold } = answer;
    const n = y.length, wide = Math.min(340 / n, 56), mark = letters(answer);
    const scale = TALL / Math.max(0.5, ...y);
    const inside = threshold >= -LIMIT && threshold <= LIMIT;
    let svg = [-2, -1, 0, 1, 2]
      .map((v) => `<line class="explorer-grid" x1="44" x2="470" y1="${yOf(v)}" y2="${yOf(v)}"/>
        <text x="36" y="${yOf(v) + 4}" text-anchor="end">${String(v).replace("-", "−")}</text>`)
      .join("");
    y.forEach((weight, i) => {
      const x = xOf(i), color = COLORS[i], height = weight * scale;
      if (MAPPINGS[state.mapping][2] !== "none")
        svg += `<line x1="${x - wide / 2}" x2="${x + wide / 2}" y1="${yOf(clamp(z[i], -2.2, 2.2))}"
          y2="${yOf(clamp(z[i], -2.2, 2.2))}" stroke="${color}" stroke-width="4"/>`;
      svg += `<rect x="${x - wide / 2}" y="${BASE - height}" width="${wide}" height="${height}" fill="${color}"/>
        <text x="${x}" y="${BASE - height - 6}" text-anchor="middle">${number(weight)}</text>
        <text x="${x}" y="${BASE + 18}" text-anchor="middle">${i + 1}${mark[i] && ` ${mark[i]}`}</text>`;
      dots[i].setAttribute("transform", `translate(${x} ${yOf(state.x[i])})`);
      dots[i].style.color = color;
      dots[i].setAttribute("aria-valuenow", state.x[i]);
      dots[i].setAttribute("aria-valuetext", `${state.x[i]}, weight ${number(weight)}`);
    });
    svg += `<line class="explorer-axis" x1="44" x2="470" y1="${BASE}" y2="${BASE}"/>`;
    const cap = BASE - fitting(n).cap * scale;
    if (used().includes("cap") && cap > BASE - TALL - 2)
      svg += `<line class="explorer-threshold" data-part="cap" x1="44" x2="470" y1="${cap}" y2="${cap}"/>`;
    if (inside)
      svg += `<line class="explorer-threshold" x1="44" x2="470" y1="${yOf(threshold)}" y2="${yOf(threshold)}"/>`;
    part.scores.querySelector("[data-part]").innerHTML = svg;
  }

  // Path.
  const LEFT = 44, RIGHT = 470, FLOOR = 262, SAMPLES = 120;
  const along = (key, share) => {
    const [, low, high, , number_] = SLIDERS[key];
    return number_(low + (high - low) * share);
  };
  const shareOf = (key) => {
    const [, low, high, , , slider] = SLIDERS[key];
    return (slider(h[key]) - low) / (high - low);
  };
  function drawPath() {
    const key = state.over, sign = SLIDERS[key][0];
    const runs = Array.from({ length: SAMPLES + 1 }, (_, k) =>
      mapped(state.x, { [key]: along(key, k / SAMPLES) }).y);
    const px = (share) => LEFT + (RIGHT - LEFT) * share;
    const py = (weight) => FLOOR - weight * (FLOOR - 16);
    let svg = [0, 0.25, 0.5, 0.75, 1]
      .map((v) => `<line class="explorer-grid" x1="${LEFT}" x2="${RIGHT}" y1="${py(v)}" y2="${py(v)}"/>
        <text x="${LEFT - 8}" y="${py(v) + 4}" text-anchor="end">${v}</text>
        <text x="${px(v)}" y="${FLOOR + 18}" text-anchor="middle">${along(key, v).toPrecision(2)}</text>`)
      .join("");
    const n = state.x.length;
    // later lines are thinner, so that equal weights all show
    state.x.forEach((_, i) => {
      const points = runs.map((y, k) => `${px(k / SAMPLES).toFixed(1)},${py(y[i]).toFixed(1)}`);
      svg += `<polyline points="${points.join(" ")}" fill="none" stroke="${COLORS[i]}"
        stroke-width="${2 + ((n - i) * 6) / n}"/>`;
    });
    const now = px(clamp(shareOf(key), 0, 1));
    svg += `<line class="explorer-threshold" x1="${now}" x2="${now}" y1="12" y2="${FLOOR}"/>
      <text x="${(LEFT + RIGHT) / 2}" y="${FLOOR + 34}" text-anchor="middle">${sign}</text>`;
    part.path.innerHTML = svg;
    part.path.setAttribute("aria-label", `weights over ${sign}`);
    part.over.innerHTML = used()
      .map((k) => `<button type="button" data-key="${k}" aria-pressed="${k === key}">over ${SLIDERS[k][0]}</button>`)
      .join("");
  }
  onDrag(part.path, part.path, ([x]) =>
    set(state.over, along(state.over, clamp((x - LEFT) / (RIGHT - LEFT), 0, 1))));
  part.over.addEventListener("click", (event) => {
    const { key } = event.target.dataset;
    if (!key) return;
    state.over = key;
    draw();
    part.over.querySelector(`[data-key="${key}"]`).focus();
  });

  // Triangle: a vector with sum 1 is a point of the plane, and the corners are its unit vectors.
  const SIDE = 250, MIDDLE = [240, 232];
  const CORNERS = [[-0.5, 1 / 3 ** 0.5 / 2], [0.5, 1 / 3 ** 0.5 / 2], [0, -1 / 3 ** 0.5]].map(
    ([x, y]) => [MIDDLE[0] + SIDE * x, MIDDLE[1] + SIDE * y]);
  const point = (b) => [0, 1].map((k) => b.reduce((sum, v, i) => sum + v * CORNERS[i][k], 0));
  const coordinates = ([x, y]) => {
    const third = (MIDDLE[1] + SIDE / 3 ** 0.5 / 2 - y) / (SIDE * (3 ** 0.5 / 2));
    const second = (x - MIDDLE[0]) / SIDE + (1 - third) / 2;
    return [1 - second - third, second, third];
  };
  const mean = (x) => (x[0] + x[1] + x[2]) / 3;
  part.triangle.innerHTML = `<polygon class="explorer-axis" fill="none" points="${CORNERS.join(" ")}"/>
    ${CORNERS.map(([x, y], i) => `<text x="${x + [-14, 14, 0][i]}" y="${y + [16, 16, -8][i]}"
      text-anchor="middle">${i + 1}</text>`).join("")}
    <line class="explorer-threshold" data-part="link"/><circle data-part="weights" r="5"/>${dot("three scores")}`;
  const plane = part.triangle.querySelector(".explorer-dot");
  const movePlane = (p) => {
    const m = mean(state.x);
    const b = coordinates([clamp(p[0], 8, 472), clamp(p[1], 8, 392)]);
    state.x = b.map((v) => clamp(Math.round((m + v - 1 / 3) * 100) / 100, -LIMIT, LIMIT));
    draw();
  };
  const scorePoint = () => point(state.x.map((v) => v - mean(state.x) + 1 / 3));
  onDrag(plane, part.triangle, movePlane);
  onArrows(plane, ([dx, dy]) => {
    const [x, y] = scorePoint();
    movePlane([x + SIDE * dx, y - SIDE * dy]);
  });
  let painted = "";
  let later = 0;
  /** The plane, in large cells at once, and in small ones when the sliders rest. */
  function paint() {
    const key = JSON.stringify([state.mapping, h]);
    if (key === painted) return;
    painted = key;
    fill(20);
    clearTimeout(later);
    later = setTimeout(() => fill(4), 150);
  }
  /** Each cell in the mixed colour of the positive weights; stronger where two are equal. */
  function fill(cell) {
    const context = part.regions.getContext("2d");
    context.clearRect(0, 0, 480, 400);
    for (let x = 0; x < 480; x += cell)
      for (let y = 0; y < 400; y += cell) {
        const { y: w, groups } = mapped(coordinates([x + cell / 2, y + cell / 2]));
        const on = [0, 1, 2].filter((i) => w[i] > 0);
        const rgb = [1, 3, 5].map((k) =>
          on.reduce((sum, i) => sum + parseInt(COLORS[i].slice(k, k + 2), 16), 0) / on.length);
        const tied = groups.some((members) => members.length > 1 && w[members[0]] > 0);
        context.fillStyle = `rgba(${rgb.map(Math.round)}, ${tied ? 0.55 : 0.25})`;
        context.fillRect(x, y, cell, cell);
      }
  }
  function drawTriangle({ y }) {
    const here = state.x.length === 3;
    part["triangle-figure"].hidden = !here;
    part.three.hidden = here;
    if (!here) return;
    paint();
    const { total } = fitting(3);
    const from = scorePoint(), to = point(y.map((v) => v / total)), [x1, y1] = [clamp(from[0], 8, 472), clamp(from[1], 8, 392)];
    plane.setAttribute("transform", `translate(${x1} ${y1})`);
    plane.setAttribute("aria-valuenow", state.x[0]);
    plane.setAttribute("aria-valuetext", `scores ${state.x.join(", ")}; weights ${y.map((v) => number(v)).join(", ")}`);
    const link = part.triangle.querySelector("[data-part=link]");
    Object.entries({ x1, y1, x2: to[0], y2: to[1] }).forEach(([k, v]) => link.setAttribute(k, v));
    const small = part.triangle.querySelector("[data-part=weights]");
    small.setAttribute("cx", to[0]);
    small.setAttribute("cy", to[1]);
  }

  function call() {
    const [, base, penalty, , call_] = MAPPINGS[state.mapping];
    const say = (v) => String(Number(v.toPrecision(4)));
    const { total, cap } = fitting(state.x.length);
    const bounded = total !== 1 || cap < 1;
    const names = call_ ? `from regmax import ${bounded ? "Simplex, " : ""}functional` : "import regmax";
    const last = bounded ? `, domain=${call_ ? "" : "regmax."}Simplex(${say(total)}, upper=${say(cap)})` : "";
    const given = `import torch\n${names}\n\nx = torch.tensor([${state.x.join(", ")}])`;
    if (call_)
      return `${given}\nfunctional.${call_.replace("ALPHA", say(h.alpha)).replace("LAM", say(h.lam))
        .replace(/\bP\b/, say(h.p))}, gamma=${say(h.gamma)}${last})`;
    const argument = { tsallis: `, alpha=${say(h.alpha)}`, pnorm: `, p=${say(h.p)}` }[base] ?? "";
    return `${given}
omega = regmax.regularizer("${base}"${argument}) + ${say(h.lam)} * regmax.penalty("${penalty}")
regmax.RegularizedMax(omega, gamma=${say(h.gamma)}${last})(x)`;
  }

  function draw() {
    if (!used().includes(state.over)) state.over = "gamma";
    const answer = mapped(state.x), shown = fitting(state.x.length);
    const { y, threshold } = answer, mark = letters(answer);
    part.mapping.value = state.mapping;
    for (const [key, [, , , , , slider]] of Object.entries(SLIDERS)) {
      host.querySelector(`[data-for=${key}]`).hidden = !used().includes(key);
      part[key].value = slider(shown[key]);
      part[`${key}-value`].textContent = shown[key].toFixed(key === "lam" ? 3 : 2);
      part[key].setAttribute("aria-valuetext", shown[key].toFixed(3));
    }
    part.fewer.disabled = y.length <= 2;
    part.more.disabled = y.length >= COLORS.length;
    const groups = [...new Set(mark)].filter(Boolean)
      .map((letter) => `{${mark.flatMap((m, i) => (m === letter ? [i + 1] : [])).join(", ")}}`);
    part.answer.innerHTML = [
      `<b>y</b> = (${y.map((v) => number(v)).join(", ")})`,
      `positive: ${y.filter((v) => v > 0).length} of ${y.length}`,
      `threshold: ${threshold === -Infinity ? "none" : number(threshold)}`,
      ...(MAPPINGS[state.mapping][2] === "none" ? [] : [`groups: ${groups.join(" ") || "none"}`]),
    ].map((text) => `<span>${text}</span>`).join(" ");
    part.code.textContent = call();
    drawScores(answer);
    drawPath();
    drawTriangle(answer);
  }
  function set(key, value) {
    h[key] = value;
    draw();
  }
  function replace(x) {
    state.x = x;
    build();
    draw();
  }

  part.mapping.addEventListener("change", () => {
    state.mapping = part.mapping.value;
    draw();
  });
  for (const [key, [, , , , number_]] of Object.entries(SLIDERS))
    part[key].addEventListener("input", () => set(key, number_(Number(part[key].value))));
  const some = () => Math.round((Math.random() * 3 - 1.5) * 100) / 100;
  part.fewer.addEventListener("click", () => replace(state.x.slice(0, -1)));
  part.more.addEventListener("click", () => replace([...state.x, some()]));
  part.random.addEventListener("click", () => replace(state.x.map(some)));
  part.three.addEventListener("click", () => replace([0.1, 0.4, -0.2]));
  replace(state.x);
});

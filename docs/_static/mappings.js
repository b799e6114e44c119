// The mappings of the explorer, in float64: the y with sum `total` and 0 <= y <= cap that has the
// largest <y, x> - gamma*(base(y) + lambda*penalty(y)), by the theorem of docs/theorem.md:
// prox of the penalty first, then the base. tests/docs/test_explorer.py compares them with regmax.
"use strict";

(function () {
  const add = (numbers) => numbers.reduce((sum, v) => sum + v, 0);

  /** Where an increasing f crosses 0 in [low, high], to the last bit or nearly. */
  function root(f, low, high) {
    for (let step = 0; step < 200; step++) {
      const middle = (low + high) / 2;
      if (middle <= low || middle >= high) break;
      if (f(middle) < 0) low = middle;
      else high = middle;
    }
    return high;
  }

  // Bases. Each takes the distances d >= 0 of scores to the largest one, and returns the weights
  // up to a factor, and the distance at which they reach 0.

  function softmax(d) {
    return { y: d.map((t) => Math.exp(-t)), reach: Infinity };
  }

  function sparsemax(d) {
    let sum = 0;
    let reach = 0;
    [...d].sort((s, t) => s - t).forEach((t, k) => {
      sum += t;
      if (t < (1 + sum) / (k + 1)) reach = (1 + sum) / (k + 1);
    });
    return { y: d.map((t) => Math.max(reach - t, 0)), reach };
  }

  function entmax(d, alpha) {
    const a = alpha - 1;
    if (a === 0) return softmax(d);
    if (a === 1) return sparsemax(d);
    return a < 1 ? fromTheTop(d, a) : fromTheBottom(d, a);
  }

  /** By the logarithm of the largest weight. */
  function fromTheTop(d, a) {
    const weights = (log) =>
      d.map((t) => {
        const fall = a * t * Math.exp(-a * log);
        return fall < 1 ? Math.exp(log + Math.log1p(-fall) / a) : 0;
      });
    const log = root((l) => add(weights(l)) - 1, -Math.log(d.length), 0);
    return { y: weights(log), reach: a > 0 ? Math.exp(a * log) / a : Infinity };
  }

  /** By the smallest positive weight: near 0 the weights are steep in their scores. */
  function fromTheBottom(d, a) {
    const near = [...d].sort((s, t) => s - t);
    const weights = (v, last) =>
      d.map((t) => (t > last ? 0 : (v ** a + a * (last - t)) ** (1 / a)));
    const last = near.findLast((t) => add(weights(0, t)) < 1);
    const v = root((w) => add(weights(w, last)) - 1, 0, 1);
    return { y: weights(v, last), reach: last + v ** a / a };
  }

  function pnormmax(d, p) {
    const weights = (log) => d.map((t) => Math.max(1 - t * Math.exp(-log), 0) ** (1 / (p - 1)));
    const excess = (log) => {
      const v = weights(log);
      return log + ((p - 2) / p) * Math.log(add(v.map((w) => w ** p))) + Math.log(add(v));
    };
    const log = root(excess, (2 / p - 2) * Math.log(d.length), 0);
    return { y: weights(log), reach: Math.exp(log) };
  }

  // Penalties. Each takes scores and lambda, and returns the groups of its prox: lists of indices
  // with the value that their entries share.

  /** Total variation. A run is one group unless raising a part of it pays for the new edges. */
  function chain(v, lam) {
    const groups = [];
    const solve = (first, last, push) => {
      const n = last - first;
      const run = v.slice(first, last);
      run[0] += push[0] * lam;
      run[n - 1] += push[1] * lam;
      const value = (add(v.slice(first, last)) + (push[0] + push[1]) * lam) / n;
      const high = raised(run.map((t) => t - value), lam);
      if (high === null) {
        groups.push({ value, members: Array.from({ length: n }, (_, i) => first + i) });
        return;
      }
      for (let from = 0; from < n; ) {
        let to = from + 1;
        while (to < n && high[to] === high[from]) to++;
        const sign = high[from] ? -1 : 1;
        solve(first + from, first + to, [from ? sign : push[0], to < n ? sign : push[1]]);
        from = to;
      }
    };
    solve(0, v.length, [0, 0]);
    return groups;
  }

  /** The set S with the largest gain(S) - lam * edges that it cuts; null if none gains. */
  function raised(gain, lam) {
    let best = [{ worth: 0, set: [] }, { worth: 0, set: [] }];
    gain.forEach((g, i) => {
      const toll = i ? lam : 0;
      best = [0, 1].map((state) => {
        const stay = best[state];
        const turn = best[1 - state];
        const from = turn.worth - toll > stay.worth ? turn : stay;
        const worth = from === stay ? stay.worth : turn.worth - toll;
        return { worth: worth + (state ? g : 0), set: [...from.set, state] };
      });
    });
    const { worth, set } = best[0].worth > best[1].worth ? best[0] : best[1];
    const noise = 1e-15 * gain.length * (lam + add(gain.map(Math.abs)));
    return worth > noise && set.includes(0) && set.includes(1) ? set : null;
  }

  /** OSCAR: isotonic regression of the sorted scores less lambda * (number of lower ranks). */
  function clusters(v, lam) {
    const n = v.length;
    const blocks = [];
    const order = [...v.keys()].sort((i, j) => v[j] - v[i]);
    order.forEach((i, rank) => {
      let block = { members: [i], sum: v[i], weight: n - 1 - rank };
      const level = (b) => (b.sum - lam * b.weight) / b.members.length;
      while (blocks.length && level(blocks.at(-1)) <= level(block)) {
        const above = blocks.pop();
        block = {
          members: [...above.members, ...block.members],
          sum: above.sum + block.sum,
          weight: above.weight + block.weight,
        };
      }
      blocks.push({ ...block, value: level(block) });
    });
    return blocks;
  }

  const apart = (v) => v.map((value, i) => ({ value, members: [i] }));

  const BASES = {
    entropy: (d) => softmax(d),
    gini: (d) => sparsemax(d),
    entmax15: (d) => entmax(d, 1.5),
    tsallis: (d, { alpha }) => entmax(d, alpha),
    pnorm: (d, { p }) => pnormmax(d, p),
  };
  const PENALTIES = { none: apart, tv: chain, oscar: clusters };
  // y = p(z - t) with sum k is k times the weights of z/k^(alpha - 1) on the simplex
  const ALPHA = { entropy: 1, gini: 2, entmax15: 1.5, pnorm: 2 };

  /** The largest entries at the cap, as many as need it, and the base for what is left. */
  function capped(base, d, h, total, cap) {
    const order = [...d.keys()].sort((i, j) => d[i] - d[j]);
    const y = d.map(() => cap);
    const noise = 1e-15 * total;
    for (let m = 0; m < d.length; m++) {
      const rest = order.slice(m);
      const nearest = d[rest[0]];
      const left = total - m * cap > noise * d.length ? total - m * cap : 0;
      const scale = left ** ((ALPHA[base] ?? h.alpha) - 1);
      const found = left
        ? BASES[base](rest.map((i) => (d[i] - nearest) / scale), h)
        : { y: rest.map(() => 0), reach: 0 };
      const sum = add(found.y) || 1;
      rest.forEach((i, k) => (y[i] = (left * found.y[k]) / sum));
      if (y[rest[0]] < cap - noise) return { y, reach: nearest + scale * found.reach };
      rest.forEach((i) => (y[i] = cap));
    }
    return { y, reach: Infinity };
  }

  /**
   * The weights y; the scores z after the prox, on the scale of x; the threshold, in z, below which
   * weights are 0 (-Infinity if there is none); and the groups, lists of indices.
   */
  function solve(base, penalty, x, options = {}) {
    const { gamma = 1, lam = 0, alpha = 1.5, p = 1.5, total = 1, cap = total } = options;
    const top = Math.max(...x);
    const groups = PENALTIES[penalty](x.map((v) => (v - top) / gamma), lam);
    const z = [];
    for (const { value, members } of groups) for (const i of members) z[i] = value;
    const highest = Math.max(...z);
    const { y, reach } = capped(base, z.map((v) => highest - v), { alpha, p }, total, cap);
    return {
      y,
      z: z.map((v) => top + gamma * v),
      threshold: top + gamma * (highest - reach),
      groups: groups.map(({ members }) => members),
    };
  }

  if (typeof module !== "undefined") module.exports = { solve };
  else window.regmaxMappings = { solve };
})();

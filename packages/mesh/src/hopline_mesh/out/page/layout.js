// Positions of services: callers to the left of their callees, few crossings, no overlaps.
//
// After Sugiyama, Tagawa and Toda (1981): break cycles, layer by longest path, order by barycentres. Layers
// that would be too tall become several columns.

/** Boxes with names; for many services dots, with names only for the most important ones. */
export const BOX = { width: 148, height: 32, gapX: 62, gapY: 14, gapAlone: 22, mostStep: 120 };
export const DOT = { width: 14, height: 14, gapX: 76, gapY: 14, gapAlone: 120, mostStep: 60 };
const SWEEPS = 12;

/**
 * @param count services, numbered from 0
 * @param edges [caller, callee] pairs
 * @param cell size of a service and the room between two
 * @param aspect width by height of where it is drawn: rows move apart to fill it
 * @returns {{x: number[], y: number[], width: number, height: number}} left upper corners
 */
export function layout(count, edges, cell = BOX, aspect = 1.6) {
  const { out, into } = neighbours(count, edges);
  const layer = layers(count, out, into);
  const alone = (node) => out[node].length + into[node].length === 0;
  const connected = [...Array(count).keys()].filter((node) => !alone(node));
  const tallest = Math.max(8, Math.ceil(1.3 * Math.sqrt(count)));
  const columns = ordered(connected, layer, out, into).flatMap((column) => split(column, tallest));
  const x = new Array(count).fill(0), y = new Array(count).fill(0);
  const width = Math.max(1, columns.length) * (cell.width + cell.gapX) - cell.gapX;
  const rows = Math.max(1, ...columns.map((column) => column.length));
  const step = Math.min(cell.mostStep, Math.max(cell.height + cell.gapY, width / aspect / rows));
  const height = rows * step;
  columns.forEach((column, index) => {
    const top = (height - column.length * step) / 2;
    column.forEach((node, row) => {
      x[node] = index * (cell.width + cell.gapX);
      y[node] = top + row * step;
    });
  });
  const straightened = straighten(columns, y, out, into, step, height);
  const bottom = beside([...Array(count).keys()].filter(alone), x, y, width, straightened, step, cell);
  // Stretch the shorter side to the aspect ratio of the drawing.
  const stretch = Math.min(1.8, Math.max(1, (aspect * bottom) / width));
  return { x: x.map((each) => each * stretch), y, width: (width - cell.width) * stretch + cell.width, height: bottom };
}

function neighbours(count, edges) {
  const out = Array.from({ length: count }, () => []);
  const into = Array.from({ length: count }, () => []);
  for (const [caller, callee] of edges) {
    if (caller === callee) continue;
    out[caller].push(callee);
    into[callee].push(caller);
  }
  return { out, into };
}

/** Longest path from a service without callers; an edge that closes a cycle is ignored. */
function layers(count, out, into) {
  const state = new Uint8Array(count), order = [], back = new Set();
  const roots = [...Array(count).keys()].sort((a, b) => into[a].length - into[b].length);
  for (const root of roots) {
    if (state[root]) continue;
    const stack = [[root, 0]];
    state[root] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1];
      const next = out[top[0]][top[1]++];
      if (next === undefined) {
        state[top[0]] = 2;
        order.push(top[0]);
        stack.pop();
      } else if (state[next] === 1) back.add(top[0] * count + next);
      else if (state[next] === 0) {
        state[next] = 1;
        stack.push([next, 0]);
      }
    }
  }
  const layer = new Array(count).fill(0);
  for (const node of order.reverse())
    for (const next of out[node])
      if (!back.has(node * count + next)) layer[next] = Math.max(layer[next], layer[node] + 1);
  return layer;
}

/** Columns of services, each in an order with few crossings. */
function ordered(nodes, layer, out, into) {
  const columns = [];
  for (const node of nodes) (columns[layer[node]] ??= []).push(node);
  const place = new Map();
  const settle = (column) => column.forEach((node, row) => place.set(node, (row + 0.5) / column.length));
  columns.forEach(settle);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    for (const column of down ? columns : [...columns].reverse()) {
      const centre = new Map(column.map((node) => [node, mean(down ? into[node] : out[node], place)]));
      column.sort((a, b) => centre.get(a) - centre.get(b));
      settle(column);
    }
  }
  return columns;

  function mean(others, where) {
    if (!others.length) return Infinity;
    return others.reduce((sum, other) => sum + where.get(other), 0) / others.length;
  }
}

function split(column, tallest) {
  const parts = Math.ceil(column.length / tallest), size = Math.ceil(column.length / parts);
  return Array.from({ length: parts }, (_, part) => column.slice(part * size, (part + 1) * size));
}

/** Move services towards their neighbours, in order and without overlaps; returns the height. */
function straighten(columns, y, out, into, step, height) {
  for (let round = 0; round < 10; round++) {
    for (const column of columns) {
      const wanted = column.map((node) => {
        const others = [...out[node], ...into[node]];
        return others.length ? others.reduce((sum, other) => sum + y[other], 0) / others.length : y[node];
      });
      column.forEach((node, row) => {
        y[node] = row ? Math.max(wanted[row], y[column[row - 1]] + step) : wanted[row];
      });
      const shift = wanted.reduce((sum, each, row) => sum + each - y[column[row]], 0) / column.length;
      // Stay within the drawing. No column is taller than it, so the two passes always find room.
      let top = 0, bottom = height - step;
      for (const node of column) top = (y[node] = Math.max(top, y[node] + shift)) + step;
      for (const node of [...column].reverse()) bottom = (y[node] = Math.min(bottom, y[node])) - step;
    }
  }
  const all = columns.flat();
  const top = Math.min(...all.map((node) => y[node]), Infinity);
  for (const node of all) y[node] -= top;
  return all.length ? Math.max(...all.map((node) => y[node])) + step : 0;
}

/** Services without callers and callees are below the graph, in rows. */
function beside(nodes, x, y, width, top, step, cell) {
  if (!nodes.length) return Math.max(step, top) - cell.gapY;
  const perRow = Math.max(3, Math.floor((width + cell.gapX) / (cell.width + cell.gapAlone)));
  nodes.forEach((node, index) => {
    x[node] = (index % perRow) * (cell.width + cell.gapAlone);
    y[node] = top + step / 2 + Math.floor(index / perRow) * step;
  });
  return top + step / 2 + Math.ceil(nodes.length / perRow) * step;
}

// Keys, wherever on the page the focus is, inside the 3-D viewers too.

// Listens in a window. `table` maps a key to {down, up, repeats}.
export function listenForKeys(target, table) {
  const held = new Map();
  const handle = event => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const action = table[event.key];
    if (!action || (action.applies && !action.applies())) return;
    // Space would press the focused button, and arrows would move the viewer's camera.
    event.preventDefault();
    event.stopImmediatePropagation();
    if (event.repeat && !action.repeats) return;
    held.set(event.code, action);
    action.down();
  };
  const release = event => {
    const action = held.get(event.code);
    if (!action) return;
    held.delete(event.code);
    event.preventDefault();
    event.stopImmediatePropagation();
    if (action.up) action.up();
  };
  target.addEventListener("keydown", handle, true);
  target.addEventListener("keyup", release, true);
  target.addEventListener("blur", () => {
    for (const action of held.values()) if (action.up) action.up();
    held.clear();
  });
}

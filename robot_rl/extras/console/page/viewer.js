// Runs inside the 3-D viewers. They draw at every refresh of the screen, whether or not anything moves;
// the robot is shown at 15 Hz, and the browser may share its machine with the control loop.
(() => {
  const INTERVAL_MS = 50;
  const [request, cancel] = [window.requestAnimationFrame, window.cancelAnimationFrame];
  const waiting = new Map();
  let number = 0;
  window.requestAnimationFrame = callback => {
    const id = ++number;
    const frame = { asked: null };
    frame.timer = setTimeout(() => {
      frame.asked = request.call(window, time => { waiting.delete(id); callback(time); });
    }, INTERVAL_MS);
    waiting.set(id, frame);
    return id;
  };
  window.cancelAnimationFrame = id => {
    const frame = waiting.get(id);
    if (!frame) return;
    waiting.delete(id);
    clearTimeout(frame.timer);
    if (frame.asked !== null) cancel.call(window, frame.asked);
  };
})();

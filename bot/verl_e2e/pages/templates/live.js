"use strict"
// What changes on the page comes as events; without them it stays as it was read. It is not replaced while no one
// looks, nor while the keyboard is on one of its links, which could become another.
const live = document.getElementById("live")
let newest = null
function show() {
  const at = [...live.querySelectorAll("[tabindex]")].indexOf(document.activeElement)
  if (newest === null || document.hidden || (at < 0 && live.contains(document.activeElement))) return
  const found = document.createElement("main")
  found.innerHTML = newest
  newest = null
  if (found.innerHTML === live.innerHTML) return
  const open = [...live.querySelectorAll("details")].map((one) => one.open)
  live.replaceChildren(...found.childNodes)
  live.querySelectorAll("details").forEach((one, index) => { one.open = open[index] || false })
  live.querySelectorAll("[tabindex]")[at]?.focus({preventScroll: true})
}
new EventSource(location.href).onmessage = (event) => { newest = event.data; show() }
for (const name of ["visibilitychange", "focusout"]) document.addEventListener(name, () => setTimeout(show))

"use strict"
// What changes on the page comes as events; without them it stays as it was read. It is not replaced under a reader who
// is in it with the keyboard, nor while no one looks.
const live = document.getElementById("live")
let newest = null
function show() {
  if (newest === null || document.hidden || live.contains(document.activeElement)) return
  const found = document.createElement("main")
  found.innerHTML = newest
  newest = null
  if (found.innerHTML === live.innerHTML) return
  const open = [...live.querySelectorAll("details")].map((one) => one.open)
  live.replaceChildren(...found.childNodes)
  live.querySelectorAll("details").forEach((one, at) => { one.open = open[at] || false })
}
new EventSource(location.href).onmessage = (event) => { newest = event.data; show() }
for (const name of ["visibilitychange", "focusout"]) document.addEventListener(name, () => setTimeout(show))

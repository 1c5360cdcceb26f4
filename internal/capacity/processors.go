package capacity

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// NodeBusy reports whether the node's average load over the last minute was at least half
// of its processors. A container sees the node's /proc/loadavg. NodeBusy does not notice
// that a container is throttled by its own limit.
func NodeBusy() bool {
	text, err := os.ReadFile("/proc/loadavg")
	return err != nil || halfLoaded(string(text), runtime.NumCPU())
}

// halfLoaded reports whether a text like that of /proc/loadavg gives a one-minute average
// of at least half of the processors. A text that cannot be parsed counts as a busy node.
func halfLoaded(loadavg string, processors int) bool {
	average, _, _ := strings.Cut(loadavg, " ")
	load, err := strconv.ParseFloat(average, 64)
	return err != nil || load >= float64(processors)/2
}

package capacity

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// NodeBusy reports whether, in the last minute, half of the node's processors were
// asked for on average. What a container sees of /proc/loadavg is the node's. It does
// not tell of a container that its own limit slows down.
func NodeBusy() bool {
	text, err := os.ReadFile("/proc/loadavg")
	return err != nil || asksForHalf(string(text), runtime.NumCPU())
}

// asksForHalf reads the average of a minute from a text like that of /proc/loadavg.
// What cannot be read is taken for a node that is busy.
func asksForHalf(loadavg string, processors int) bool {
	average, _, _ := strings.Cut(loadavg, " ")
	load, err := strconv.ParseFloat(average, 64)
	return err != nil || load >= float64(processors)/2
}

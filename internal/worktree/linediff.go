package worktree

import "bytes"

const (
	// maxCountedBytes is the size of the largest file whose lines are counted.
	maxCountedBytes = 1 << 20
	// maxEdits is the number of edits after which the exact comparison gives up and
	// countLines estimates.
	maxEdits = 1500
)

// isBinary reports whether content is binary by git's rule: a NUL in the first 8,000
// bytes.
func isBinary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0
}

// countLines returns how many lines must be added to and removed from old to get
// new, as git diff --numstat does.
func countLines(old, new []byte) (added, removed int64) {
	a, b := lineIDs(old, new)
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	common, ok := longestCommon(a, b)
	if !ok {
		common = commonLines(a, b)
	}
	return int64(len(b) - common), int64(len(a) - common)
}

// lineIDs numbers the lines of both texts, giving equal lines the same number.
func lineIDs(old, new []byte) (a, b []int) {
	ids := map[string]int{}
	number := func(text []byte) (list []int) {
		for line := range bytes.Lines(text) {
			id, ok := ids[string(line)]
			if !ok {
				id = len(ids)
				ids[string(line)] = id
			}
			list = append(list, id)
		}
		return list
	}
	return number(old), number(new)
}

// longestCommon returns the length of the longest common subsequence, by Myers'
// greedy algorithm; ok is false if the texts differ by more than maxEdits lines.
func longestCommon(a, b []int) (length int, ok bool) {
	if len(a) == 0 || len(b) == 0 {
		return 0, true
	}
	limit := min(len(a)+len(b), maxEdits)
	reach := make([]int, 2*limit+3) // furthest x on each diagonal
	for d := 0; d <= limit; d++ {
		for k := -d; k <= d; k += 2 {
			var x int
			if k == -d || (k != d && reach[limit+k] < reach[limit+k+2]) {
				x = reach[limit+k+2]
			} else {
				x = reach[limit+k] + 1
			}
			y := x - k
			for x < len(a) && y < len(b) && a[x] == b[y] {
				x, y = x+1, y+1
			}
			reach[limit+k+1] = x
			if x >= len(a) && y >= len(b) {
				return (len(a) + len(b) - d) / 2, true
			}
		}
	}
	return 0, false
}

// commonLines counts the lines that both texts have, in any order.
func commonLines(a, b []int) int {
	have := map[int]int{}
	for _, id := range a {
		have[id]++
	}
	common := 0
	for _, id := range b {
		if have[id] > 0 {
			have[id]--
			common++
		}
	}
	return common
}

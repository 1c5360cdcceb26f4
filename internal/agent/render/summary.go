package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/clip"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Limits of a summary: how many tools and files it names, and how many bytes of the first
// message it contains.
const (
	summaryTools = 12
	summaryFiles = 20
	summaryFirst = 2000
)

// left counts what was left out of a rendered conversation. Steps are added newest first.
type left struct {
	first       string // the user's first message
	firstShown  bool
	byUser      int
	byAssistant int
	notes       int
	calls       int
	tools       map[string]int
	files       []string
	seen        map[string]bool
}

// add counts a step that was left out.
func (l *left) add(s step) {
	if !s.isCall() {
		switch s.message.GetRole() {
		case daemonv1.Role_ROLE_USER:
			l.byUser++
		case daemonv1.Role_ROLE_ASSISTANT:
			l.byAssistant++
		default:
			l.notes++
		}
		return
	}
	l.calls++
	if l.tools == nil {
		l.tools, l.seen = map[string]int{}, map[string]bool{}
	}
	if tool := name(s.message.GetToolCall().GetName()); tool != "" {
		l.tools[tool]++
	}
	for _, file := range filesOf(s.message.GetToolCall().GetInput()) {
		if !l.seen[file] {
			l.seen[file] = true
			l.files = append(l.files, file)
		}
	}
}

// filesOf returns the files that a tool's input names under known keys.
func filesOf(input string) []string {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(input), &fields) != nil {
		return nil
	}
	var files []string
	for _, key := range []string{"file_path", "filePath", "path", "absolute_path", "notebook_path"} {
		var file string
		if json.Unmarshal(fields[key], &file) == nil && file != "" {
			files = append(files, name(file))
		}
	}
	var changes []struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(fields["changes"], &changes) == nil {
		for _, c := range changes {
			if c.Path != "" {
				files = append(files, name(c.Path))
			}
		}
	}
	return files
}

// summary describes in a few lines what was left out. It returns "" if nothing was.
func (l *left) summary(budget int) string {
	if l.byUser+l.byAssistant+l.notes+l.calls == 0 {
		return ""
	}
	var counts []string
	for _, c := range []struct {
		n    int
		kind string
	}{{l.byUser, "from the user"}, {l.byAssistant, "from you"}, {l.notes, "notes"}} {
		if c.n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", c.n, c.kind))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Left out, most of it older than what follows: %d messages", l.byUser+l.byAssistant+l.notes)
	if len(counts) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(counts, ", "))
	}
	fmt.Fprintf(&b, " and %d tool calls", l.calls)
	if tools := l.toolCounts(); tools != "" {
		fmt.Fprintf(&b, " (%s)", tools)
	}
	b.WriteString(".\n")
	if files := l.fileNames(); files != "" {
		fmt.Fprintf(&b, "Files in these calls, newest first: %s.\n", files)
	}
	if l.first != "" && !l.firstShown {
		fmt.Fprintf(&b, "The user's first words were:\n%s", indent(part(l.first, nil, summaryFirst)))
	}
	if b.Len() <= budget {
		return b.String()
	}
	if text := clip.Bytes(b.String(), budget-1); text != "" {
		return text + "\n"
	}
	return ""
}

// toolCounts lists the tools by the number of calls.
func (l *left) toolCounts() string {
	tools := slices.SortedFunc(maps.Keys(l.tools), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.tools[b], l.tools[a]), cmp.Compare(a, b))
	})
	var out []string
	for i, tool := range tools {
		if i == summaryTools {
			out = append(out, fmt.Sprintf("%d other tools", len(tools)-i))
			break
		}
		out = append(out, fmt.Sprintf("%s %d", tool, l.tools[tool]))
	}
	return strings.Join(out, ", ")
}

// fileNames lists the files, newest first.
func (l *left) fileNames() string {
	if len(l.files) <= summaryFiles {
		return strings.Join(l.files, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(l.files[:summaryFiles], ", "), len(l.files)-summaryFiles)
}

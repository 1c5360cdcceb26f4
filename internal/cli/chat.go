package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// Without --full, a message is shortened to maxLines and a line to maxRunes.
const (
	maxLines = 16
	maxRunes = 400
)

// chat prints a conversation message by message.
type chat struct {
	w        io.Writer
	style    style
	location *time.Location
	full     bool
	// memory describes what the agent remembered, by attempt.
	memory map[int64]string

	attempt int64
	last    string            // role of the previous message
	tools   map[string]string // names of tools by call id
}

func newChat(w io.Writer, location *time.Location, full bool) *chat {
	return &chat{w: w, style: styleFor(w), location: location, full: full, tools: map[string]string{}}
}

// print prints one message: a line with the speaker and the time, and the indented
// text. Consecutive plain output shares one such line.
func (c *chat) print(entry historyv1.ConversationEntry) error {
	b := &strings.Builder{}
	if entry.Attempt != c.attempt {
		if entry.Attempt > 0 {
			title := fmt.Sprintf("attempt %d", entry.Attempt)
			if memory := c.memory[entry.Attempt]; memory != "" {
				title += ": the agent " + memory
			}
			fmt.Fprintf(b, "%s\n\n", c.style.faint("── "+title+" ──"))
		}
		c.attempt, c.last = entry.Attempt, ""
	}
	if c.last == "output" && entry.Role != "output" {
		b.WriteString("\n")
	}
	if c.last != "output" || entry.Role != "output" {
		when := entry.Time.In(c.location).Format(time.DateTime)
		fmt.Fprintf(b, "%s  %s  %s\n", c.style.faint(fmt.Sprintf("%4d", entry.Position)), c.speaker(entry), c.style.faint(when))
	}
	for _, line := range c.body(entry) {
		fmt.Fprintf(b, "      %s\n", line)
	}
	for _, effect := range entry.Effects {
		fmt.Fprintf(b, "      %s\n", c.style.cyan(effectText(effect)))
	}
	if entry.Role != "output" {
		b.WriteString("\n")
	}
	c.last = entry.Role
	_, err := io.WriteString(c.w, b.String())
	return err
}

// note remembers the tool of a call, for its result.
func (c *chat) note(entry historyv1.ConversationEntry) {
	if entry.ToolCall != nil {
		c.tools[entry.ToolCall.ID] = entry.ToolCall.Name
	}
}

// speaker returns the role of a message, with the tool of a call or result.
func (c *chat) speaker(entry historyv1.ConversationEntry) string {
	switch {
	case entry.ToolCall != nil:
		c.note(entry)
		return c.style.blue(oneLine(cmp.Or(entry.Role, "assistant")) + " → " + oneLine(entry.ToolCall.Name))
	case entry.ToolResult != nil:
		return c.result(entry.ToolResult)
	}
	role := oneLine(entry.Role)
	switch entry.Role {
	case "user":
		return c.style.bold(c.style.green(role))
	case "assistant":
		return c.style.bold(c.style.cyan(role))
	}
	return c.style.faint(role)
}

// result describes how a tool call ended.
func (c *chat) result(result *historyv1.ToolResult) string {
	name := oneLine(cmp.Or(c.tools[result.CallID], "tool"))
	switch {
	case result.Interrupted:
		return c.style.yellow(name + " ← interrupted")
	case result.IsError:
		return c.style.red(name + " ← error")
	}
	return c.style.green(name + " ← ok")
}

// body returns the lines of a message.
func (c *chat) body(entry historyv1.ConversationEntry) []string {
	var parts []string
	for _, text := range []string{entry.Text, callText(entry.ToolCall), resultText(entry.ToolResult)} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 && entry.Raw != "" {
		parts = append(parts, entry.Raw)
	}
	if len(parts) == 0 {
		return nil
	}
	lines := strings.Split(strings.TrimRight(plain(strings.Join(parts, "\n")), "\n"), "\n")
	lines = c.shorten(lines)
	if note := c.truncationNote(entry); note != "" {
		lines = append(lines, c.style.faint(note))
	}
	return lines
}

// truncationNote says that the server sent a part of a text only, and how to get the
// rest. It returns "" for a complete text.
func (c *chat) truncationNote(entry historyv1.ConversationEntry) string {
	whole := entry.TextBytes + entry.RawBytes
	if entry.ToolCall != nil {
		whole += entry.ToolCall.InputBytes
	}
	if entry.ToolResult != nil {
		whole += entry.ToolResult.OutputBytes
	}
	switch {
	case whole == 0:
		return ""
	case c.full:
		return fmt.Sprintf("… the beginning of %s; `kubectl clew task export` writes all of it", humanBytes(whole))
	}
	return fmt.Sprintf("… the beginning of %s; --full prints more", humanBytes(whole))
}

// shorten shortens a message to maxLines and its lines to maxRunes, unless --full is set.
func (c *chat) shorten(lines []string) []string {
	if c.full {
		return lines
	}
	more := 0
	if len(lines) > maxLines {
		more = len(lines) - (maxLines - 1)
		lines = lines[:maxLines-1]
	}
	short := make([]string, 0, len(lines)+1)
	for _, line := range lines {
		short = append(short, clip.Runes(line, maxRunes))
	}
	if more > 0 {
		short = append(short, c.style.faint(fmt.Sprintf("… %s; --full prints all", plural(int64(more), "more line"))))
	}
	return short
}

// resultText returns the output of a tool call, or "" if there is no result.
func resultText(result *historyv1.ToolResult) string {
	if result == nil {
		return ""
	}
	return result.Output
}

// callText formats the input of a tool call. An object is formatted as "key: value"
// lines in the order in which the agent wrote them.
func callText(call *historyv1.ToolCall) string {
	if call == nil {
		return ""
	}
	lines, err := objectLines(call.Input)
	if err != nil {
		return call.Input
	}
	return strings.Join(lines, "\n")
}

// objectLines formats a JSON object as "key: value" lines. It fails for other JSON.
func objectLines(input string) ([]string, error) {
	decoder := json.NewDecoder(strings.NewReader(input))
	start, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	if start != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	var lines []string
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		text := string(value)
		var unquoted string
		if json.Unmarshal(value, &unquoted) == nil && value[0] == '"' {
			text = unquoted
		}
		if strings.Contains(strings.TrimRight(text, "\n"), "\n") {
			lines = append(lines, fmt.Sprintf("%s:", key))
			for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
				lines = append(lines, "  "+line)
			}
			continue
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%s: %s", key, text), " \n"))
	}
	return lines, nil
}

package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Limits for reading session files. The agents write these files, so they can contain
// anything.
const (
	maxSessionBytes   = 1 << 30
	maxSessionLine    = 1 << 20
	maxSessionResults = 1 << 20
	maxFound          = 1024
	maxListed         = 100_000
)

// errNoSession returns an error that wraps fs.ErrNotExist with a reason.
func errNoSession(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, fs.ErrNotExist)...)
}

// sessionID reports whether an id can safely be part of a file name.
func sessionID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, c := range []byte(id) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// find lists the regular files that match a pattern of path.Match.
func find(home fs.FS, pattern string) []string {
	dirs, listed := []string{"."}, 0
	parts := strings.Split(pattern, "/")
	for i, part := range parts {
		var next []string
		for _, dir := range dirs {
			for _, name := range list(home, dir, part, &listed) {
				p := path.Join(dir, name)
				// Check the type before anything is opened: reading a named pipe
				// would block forever.
				info, err := fs.Stat(home, p)
				if err != nil || len(next) >= maxFound {
					continue
				}
				if last := i == len(parts)-1; (last && info.Mode().IsRegular()) || (!last && info.IsDir()) {
					next = append(next, p)
				}
			}
		}
		dirs = next
	}
	return dirs
}

// list returns the names in a folder that match a pattern. listed counts the entries read
// so far.
func list(home fs.FS, dir, pattern string, listed *int) []string {
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{pattern}
	}
	f, err := home.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	folder, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil
	}
	var names []string
	for *listed < maxListed {
		entries, err := folder.ReadDir(256)
		*listed += len(entries)
		for _, e := range entries {
			if match, _ := path.Match(pattern, e.Name()); match {
				names = append(names, e.Name())
			}
		}
		if err != nil || len(entries) == 0 {
			break
		}
	}
	return names
}

// newest returns the file that was modified last.
func newest(home fs.FS, files []string) string {
	var best string
	var at time.Time
	for _, f := range files {
		if info, err := fs.Stat(home, f); err == nil && (best == "" || info.ModTime().After(at)) {
			best, at = f, info.ModTime()
		}
	}
	return best
}

// readLines calls a function for each line of a file that is JSON. Long strings are cut
// out of lines that are too long. An incomplete last line is skipped.
func readLines(home fs.FS, name string, line func([]byte)) error {
	f, err := home.Open(name)
	if err != nil {
		return fmt.Errorf("open the session file %s: %w", name, err)
	}
	defer f.Close()
	limited := &io.LimitedReader{R: f, N: maxSessionBytes}
	r := bufio.NewReaderSize(limited, 64<<10)
	for {
		short, err := nextLine(r)
		if len(short) > 0 {
			line(short)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the session file %s: %w", name, err)
		}
	}
	if limited.N <= 0 {
		return errNoSession("the session file %s is larger than %d bytes", name, maxSessionBytes)
	}
	return nil
}

// nextLine reads a line. It returns nothing for a line that is not JSON.
func nextLine(r *bufio.Reader) ([]byte, error) {
	var whole []byte
	var cutter *Cutter
	for {
		part, err := r.ReadSlice('\n')
		if cutter == nil && len(whole)+len(part) > maxSessionLine {
			cutter = NewCutter(func([]byte) {})
			cutter.Write(whole) //nolint:errcheck // never fails
			whole = nil
		}
		if cutter != nil {
			cutter.Write(part) //nolint:errcheck // never fails
		} else {
			whole = append(whole, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if cutter != nil {
			whole, _ = cutter.Finish()
		} else if !json.Valid(whole) {
			whole = nil
		}
		return whole, err
	}
}

// claudeSession reads the transcripts of a session and its subagents.
func claudeSession(home fs.FS, id string) (Session, error) {
	if !sessionID(id) {
		return Session{}, errNoSession("%q is not a session of Claude Code", id)
	}
	file := newest(home, find(home, ".claude/projects/*/"+id+".jsonl"))
	if file == "" {
		return Session{}, errNoSession("Claude Code has no file of session %s in .claude/projects", id)
	}
	results, messages := map[string]bool{}, 0
	read := func(line []byte) {
		var e struct {
			Type    string `json:"type"`
			Message struct {
				Content json.RawMessage `json:"content"`
			} `json:"message"`
		}
		if json.Unmarshal(line, &e) != nil || (e.Type != "user" && e.Type != "assistant") {
			return
		}
		messages++
		blocks, _ := claudeBlocks(e.Message.Content)
		for _, b := range blocks {
			if strings.HasSuffix(b.Type, "tool_result") && b.ToolUseID != "" && len(results) < maxSessionResults {
				results[Text([]byte(b.ToolUseID))] = true
			}
		}
	}
	if err := readLines(home, file, read); err != nil {
		return Session{}, err
	}
	if messages == 0 {
		return Session{}, errNoSession("the file of session %s contains no message", id)
	}
	for _, sub := range find(home, strings.TrimSuffix(file, ".jsonl")+"/subagents/*.jsonl") {
		if err := readLines(home, sub, read); err != nil {
			return Session{}, err
		}
	}
	return Session{Results: results, ResultCount: len(results)}, nil
}

// codexSession reads a rollout. For each item that it prints as completed, Codex records
// the item there under the id of the model's call and, some milliseconds later, the
// output that the model gets. Only tool items with both are counted: without the second,
// Codex invents an answer when it resumes.
func codexSession(home fs.FS, id string) (Session, error) {
	if !sessionID(id) {
		return Session{}, errNoSession("%q is not a thread of Codex", id)
	}
	file := newest(home, find(home, ".codex/sessions/*/*/*/rollout-*-"+id+".jsonl"))
	if file == "" {
		return Session{}, errNoSession("Codex has no rollout of thread %s in .codex/sessions", id)
	}
	items, outputs, found := map[string]bool{}, map[string]bool{}, false
	err := readLines(home, file, func(line []byte) {
		var e struct {
			Type    string `json:"type"`
			Payload struct {
				Type   string `json:"type"`
				ID     string `json:"id"`
				CallID string `json:"call_id"`
				Item   struct {
					Type string `json:"type"`
					ID   string `json:"id"`
				} `json:"item"`
			} `json:"payload"`
		}
		if json.Unmarshal(line, &e) != nil || len(items)+len(outputs) > maxSessionResults {
			return
		}
		switch p := e.Payload; {
		case e.Type == "session_meta":
			found = found || p.ID == id
		case e.Type == "response_item" && strings.HasSuffix(p.Type, "_output"):
			outputs[p.CallID] = true
		case e.Type == "event_msg" && p.Type == "item_completed":
			switch p.Item.Type {
			case "CommandExecution", "FileChange", "McpToolCall", "WebSearch":
				items[p.Item.ID] = true
			}
		}
	})
	if err != nil {
		return Session{}, err
	}
	if !found {
		return Session{}, errNoSession("the rollout file of thread %s belongs to another thread", id)
	}
	count := len(outputs)
	if len(items) > 0 {
		count = 0
		for id := range items {
			if outputs[id] {
				count++
			}
		}
	}
	return Session{ResultCount: count}, nil
}

// geminiMessage is a line of a chat file: a message, or a patch of the chat.
type geminiMessage struct {
	SessionID string `json:"sessionId"`
	ID        string `json:"id"`
	Type      string `json:"type"`
	Model     string `json:"model"`
	Tokens    *struct {
		Input  count `json:"input"`
		Cached count `json:"cached"`
		Output count `json:"output"`
		Total  count `json:"total"`
	} `json:"tokens"`
	Content   json.RawMessage `json:"content"`
	ToolCalls []struct {
		ID     string          `json:"id"`
		Result json.RawMessage `json:"result"`
	} `json:"toolCalls"`
	Set *struct {
		Messages []geminiMessage `json:"messages"`
	} `json:"$set"`
}

// geminiChat is the combined content of a session's files.
type geminiChat struct {
	id       string
	found    bool
	messages int
	results  map[string]bool
	// answers are the tokens of the model's messages, by message id, since a message
	// is written again whenever something is added to it.
	answers map[string]Tokens
}

// geminiSession reads a chat. At each resume, the Gemini CLI creates another file for the
// session, but continues to write to the first one. A result is stored with its call, and
// again in the message that passed it to the model.
func geminiSession(home fs.FS, id string) (Session, error) {
	if !sessionID(id) || len(id) < 8 {
		return Session{}, errNoSession("%q is not a session of the Gemini CLI", id)
	}
	all := geminiChat{results: map[string]bool{}, answers: map[string]Tokens{}}
	for _, file := range find(home, ".gemini/tmp/*/chats/session-*-"+id[:8]+".jsonl") {
		chat := geminiChat{id: id, results: map[string]bool{}, answers: map[string]Tokens{}}
		if err := readLines(home, file, chat.line); err != nil {
			return Session{}, err
		}
		if chat.found {
			all.messages += chat.messages
			maps.Copy(all.results, chat.results)
			maps.Copy(all.answers, chat.answers)
		}
	}
	if all.messages == 0 {
		return Session{}, errNoSession("the Gemini CLI has no chat of session %s in .gemini/tmp", id)
	}
	for _, file := range find(home, ".gemini/tmp/*/chats/"+id+"/*.jsonl") {
		sub := geminiChat{results: map[string]bool{}, answers: all.answers} // a subagent's
		if err := readLines(home, file, sub.line); err != nil {
			return Session{}, err
		}
	}
	return Session{Results: all.results, ResultCount: len(all.results), Tokens: AddTokens(slices.Collect(maps.Values(all.answers)))}, nil
}

// line adds a line of a chat file.
func (c *geminiChat) line(line []byte) {
	var m geminiMessage
	if json.Unmarshal(line, &m) != nil {
		return
	}
	c.found = c.found || m.SessionID == c.id
	if m.Set != nil && m.Set.Messages != nil {
		clear(c.results) // the patch replaces all results, but not the tokens they used
		c.messages = 0
		for _, each := range m.Set.Messages {
			c.add(each)
		}
	}
	c.add(m)
}

// add adds a message.
func (c *geminiChat) add(m geminiMessage) {
	c.messages += m.results(c.results)
	if m.Type == "gemini" && m.Tokens != nil && m.ID != "" && len(c.answers) < maxSessionResults {
		t := m.Tokens
		c.answers[m.ID] = Tokens{Text([]byte(m.Model)), int64(t.Input), int64(t.Cached), int64(max(t.Output, t.Total-t.Input))}
	}
}

// results adds the ids of a message's results to a set. It returns 1 if the line is a
// message, else 0.
func (m geminiMessage) results(into map[string]bool) int {
	if m.Type != "user" && m.Type != "gemini" || len(into) > maxSessionResults {
		return 0
	}
	for _, c := range m.ToolCalls {
		if c.ID != "" && len(c.Result) > 0 && string(c.Result) != "null" {
			into[Text([]byte(c.ID))] = true
		}
	}
	var parts []struct {
		Response struct {
			ID string `json:"id"`
		} `json:"functionResponse"`
	}
	if json.Unmarshal(m.Content, &parts) == nil {
		for _, p := range parts {
			if p.Response.ID != "" {
				into[Text([]byte(p.Response.ID))] = true
			}
		}
	}
	return 1
}

// openCodeSession searches for the id in the database and its write-ahead log.
func openCodeSession(home fs.FS, id string) (Session, error) {
	if !sessionID(id) || !strings.HasPrefix(id, "ses_") {
		return Session{}, errNoSession("%q is not a session of OpenCode", id)
	}
	const data = ".local/share/opencode/"
	if len(find(home, data+"storage/session/*/"+id+".json")) > 0 {
		return Session{ResultCount: -1}, nil
	}
	for _, pattern := range []string{"opencode*.db", "opencode*.db-wal"} {
		for _, file := range find(home, data+pattern) {
			found, err := fileContains(home, file, []byte(id))
			if err != nil {
				return Session{}, err
			}
			if found {
				return Session{ResultCount: -1}, nil
			}
		}
	}
	return Session{}, errNoSession("OpenCode's database in %s does not contain the session %s", data, id)
}

// fileContains reports whether a file contains the bytes.
func fileContains(home fs.FS, name string, want []byte) (bool, error) {
	f, err := home.Open(name)
	if err != nil {
		return false, fmt.Errorf("open the database %s: %w", name, err)
	}
	defer f.Close()
	r := io.LimitReader(f, 4*maxSessionBytes)
	buf := make([]byte, 0, 256<<10)
	for {
		n, err := io.ReadFull(r, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if bytes.Contains(buf, want) {
			return true, nil
		}
		keep := min(len(buf), len(want)-1)
		copy(buf[:keep], buf[len(buf)-keep:])
		buf = buf[:keep]
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read the database %s: %w", name, err)
		}
	}
}

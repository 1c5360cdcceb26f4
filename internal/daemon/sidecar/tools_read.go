package sidecar

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/tools"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/quote"
)

const (
	// defaultCheckpoints and mostCheckpoints are how many checkpoints are listed, defaultHits and
	// mostHits how many messages are returned.
	defaultCheckpoints, mostCheckpoints = 20, 100
	defaultHits, mostHits               = 10, 50
	// maxQuery bounds the words of a search, maxPath a path, in bytes.
	maxQuery, maxPath = 1024, 4096
	// storedWait is how long a search waits until the server has what was recorded before, and
	// searchWait how long for its answer.
	storedWait = 2 * time.Second
	searchWait = 20 * time.Second
	// maxPatch bounds a patch, in bytes.
	maxPatch = 40 << 10
	// patchWait bounds how long git may compare.
	patchWait = 20 * time.Second
)

// checkpointItem is a checkpoint for programs.
type checkpointItem struct {
	Checkpoint int64     `json:"checkpoint"`
	Time       time.Time `json:"time"`
	Trigger    string    `json:"trigger"`
	Message    string    `json:"message,omitempty"`
}

// Checkpoints implements tools.Answerer.
func (a *toolAnswers) Checkpoints(ctx context.Context, in tools.CheckpointsInput) (tools.Answer, error) {
	if err := a.rested(ctx); err != nil {
		return tools.Answer{}, err
	}
	line, _, err := a.line(ctx)
	if err != nil {
		return tools.Answer{}, err
	}
	if in.Before > 0 {
		line = slices.DeleteFunc(line, func(s checkpoint.Standing) bool { return s.Number >= in.Before })
	}
	limit := bounded(in.Limit, defaultCheckpoints, mostCheckpoints)
	more := len(line) > limit
	line = line[:min(len(line), limit)]
	items := make([]checkpointItem, 0, len(line))
	notice := ""
	var b strings.Builder
	for _, s := range line {
		message := s.Message
		if message == fmt.Sprintf("Checkpoint %d", s.Number) {
			message = "" // that of a checkpoint without one
		}
		message = clip.Marked(quote.Line(message), maxMessage)
		items = append(items, checkpointItem{Checkpoint: s.Number, Time: s.Time, Trigger: string(s.Trigger), Message: message})
		quoted := ""
		if s.Trigger == v1alpha1.TriggerManual && message != "" { // that of whoever may create Checkpoints
			message, quoted, notice = "", quote.Lines(message)+"\n", quote.Notice+"\n\n"
		}
		fmt.Fprintf(&b, "%d  %s  %s  %s\n%s", s.Number, s.Time.Format(time.RFC3339), s.Trigger, message, quoted)
	}
	text := notice + strings.TrimRight(b.String(), " \n")
	switch {
	case len(items) == 0 && in.Before > 0:
		text = fmt.Sprintf("There is no checkpoint before %d.", in.Before)
	case len(items) == 0:
		text = "This task has no checkpoint yet. The tool checkpoint takes one."
	case more:
		text += fmt.Sprintf("\nThere are older ones: set before to %d to list them.", items[len(items)-1].Checkpoint)
	}
	return tools.Answer{Text: text, Data: map[string]any{"checkpoints": items, "more": more}}, nil
}

func bounded(limit, otherwise, most int) int {
	if limit <= 0 {
		return otherwise
	}
	return min(limit, most)
}

// hitItem is a message that was found, for programs.
type hitItem struct {
	Position int64     `json:"position"`
	Time     time.Time `json:"time"`
	Role     string    `json:"role"`
	Tool     string    `json:"tool,omitempty"`
	Text     string    `json:"text"`
}

// marks replaces the marks around the words that were found.
var marks = strings.NewReplacer("\uE000", "**", "\uE001", "**")

// SearchHistory implements tools.Answerer.
func (a *toolAnswers) SearchHistory(ctx context.Context, in tools.SearchInput) (tools.Answer, error) {
	d := a.d
	query := strings.TrimSpace(agent.Text([]byte(in.Query)))
	if query == "" || len(query) > maxQuery {
		return tools.Answer{}, tools.Refuse("Name in query the words to search for, in at most %d bytes.", maxQuery)
	}
	free, err := place(ctx, a.searching)
	if err != nil {
		return tools.Answer{}, err
	}
	defer free()
	storing, cancel := context.WithTimeout(ctx, storedWait)
	_ = d.shipper.WaitStored(storing, d.volume.Spool.Last()) // or else the newest are not found
	cancel()
	asking, cancel := context.WithTimeout(ctx, searchWait)
	defer cancel()
	found, err := d.cfg.Server.SearchHistory(asking, query, bounded(in.Limit, defaultHits, mostHits))
	if err != nil {
		return tools.Answer{}, d.searchRefusal(err)
	}
	items := make([]hitItem, 0, len(found.GetHits()))
	var b strings.Builder
	for _, hit := range found.GetHits() {
		item := hitItem{Position: hit.GetPosition(), Time: hit.GetTime().AsTime(), Role: hit.GetRole(), Tool: hit.GetTool(), Text: marks.Replace(hit.GetSnippet())}
		items = append(items, item)
		who := item.Role
		if item.Tool != "" {
			who += ", call of " + item.Tool
		}
		fmt.Fprintf(&b, "message %d, %s, %s:\n%s\n\n", item.Position, item.Time.Format(time.RFC3339), who, item.Text)
	}
	text := strings.TrimRight(b.String(), "\n")
	switch {
	case len(items) == 0:
		text = "No message of this task's conversation has these words. Messages of the last seconds may not be found yet; try fewer or other words."
	case found.GetMore():
		text += "\n\nThere are more: name more words, or raise limit."
	}
	return tools.Answer{Text: text, Data: map[string]any{"messages": items, "more": found.GetMore()}}, nil
}

// searchRefusal says why a search has failed.
func (d *daemon) searchRefusal(err error) error {
	switch {
	case errors.Is(err, gatewayclient.ErrOlder):
		return tools.Refuse("Clew's server is of an older version, which cannot search for agents. Go on without it; a copy of the conversation up to this run is in the file that CLEW_CONVERSATION names.")
	case errors.Is(err, gatewayclient.ErrFenced):
		return tools.Refuse("This attempt of the task is over.")
	case errors.Is(err, gatewayclient.ErrNotFound):
		return tools.Refuse("Clew's server does not have this task's conversation yet. Go on with your work; try again later if you still need it.")
	}
	d.log.Info("a search of the agent's has failed", "error", err.Error())
	return tools.Refuse("The history cannot be searched at the moment: Clew's server or its store cannot be reached, there are too many searches, or too many messages have these words. Nothing is lost. Go on with your work; try again in a minute, with fewer or rarer words, if you still need it.")
}

// Diff implements tools.Answerer.
func (a *toolAnswers) Diff(ctx context.Context, in tools.DiffInput) (tools.Answer, error) {
	file, err := pathIn(in.Path)
	if err != nil {
		return tools.Answer{}, err
	}
	free, err := place(ctx, a.diffing)
	if err != nil {
		return tools.Answer{}, err
	}
	defer free()
	if err := a.rested(ctx); err != nil {
		return tools.Answer{}, err
	}
	line, start, err := a.line(ctx)
	if err != nil {
		return tools.Answer{}, err
	}
	from, to, err := a.sides(ctx, in, line, start)
	if err != nil {
		return tools.Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, patchWait)
	defer cancel()
	done := a.d.comparing.CountWork()
	patch, more, err := a.d.volume.Repo.Patch(ctx, from.commit, to.commit, file, maxPatch)
	done()
	if errors.Is(err, context.DeadlineExceeded) {
		return tools.Answer{}, tools.Refuse("Comparing takes too long: there is too much that differs. Name a file or a folder in path.")
	}
	if err != nil {
		return tools.Answer{}, err
	}
	of := ""
	if file != "" {
		of = " in " + file
	}
	text := fmt.Sprintf("From %s to %s%s:\n\n%s", from.name, to.name, of, agent.Text(patch))
	switch {
	case len(patch) == 0:
		text = fmt.Sprintf("Nothing differs%s between %s and %s.", of, from.name, to.name)
	case more:
		text += fmt.Sprintf("\n[The rest is left out, since the patch is longer than %d bytes: name a file or a folder in path.]", maxPatch)
	}
	return tools.Answer{Text: text, Data: map[string]any{"patch": agent.Text(patch), "more": more}}, nil
}

// rested waits until the processor time is paid off that earlier comparisons have used: the agent decides
// how many there are. It refuses to wait for long.
func (a *toolAnswers) rested(ctx context.Context) error {
	rest := a.d.comparing.Rest()
	if rest > maxLiveWait {
		return tools.Refuse("Nothing was compared: comparing has taken much processor time just now. Go on with your work, and ask again in %d s or later.", seconds(rest))
	}
	select {
	case <-time.After(rest):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// line returns the checkpoints that stand, and what they start from.
func (a *toolAnswers) line(ctx context.Context) (line []checkpoint.Standing, start string, err error) {
	defer a.d.comparing.CountWork()()
	return a.d.taker.Line(ctx, a.d.volume.Repo)
}

// pathIn returns a path relative to the worktree; "" for all of it.
func pathIn(given string) (string, error) {
	clean := given
	if rest, ok := strings.CutPrefix(given, daemonapi.WorktreePath); ok && (rest == "" || rest[0] == '/') {
		clean = strings.TrimLeft(rest, "/")
	}
	if clean = path.Clean(clean); clean == "." {
		return "", nil
	}
	if len(given) > maxPath || clean == ".." || strings.HasPrefix(clean, "../") || strings.HasPrefix(clean, "/") || strings.ContainsRune(given, 0) {
		return "", tools.Refuse("path must name a file or a folder of the worktree, relative to its root, such as src/main.go.")
	}
	return clean, nil
}

// side is one side of a comparison.
type side struct{ commit, name string }

// sides finds what a call compares.
func (a *toolAnswers) sides(ctx context.Context, in tools.DiffInput, line []checkpoint.Standing, start string) (from, to side, err error) {
	began := side{start, "the files that the task started from"}
	switch {
	case in.From != nil && *in.From == 0, in.From == nil && len(line) == 0:
		from = began
	case in.From == nil:
		from = sideOf(line[0])
	default:
		if from, err = find(line, *in.From); err != nil {
			return from, to, err
		}
	}
	if in.To != nil {
		if *in.To == 0 {
			return from, began, nil
		}
		to, err = find(line, *in.To)
		return from, to, err
	}
	to, err = a.now(ctx)
	return from, to, err
}

func sideOf(s checkpoint.Standing) side {
	return side{s.Commit, fmt.Sprintf("checkpoint %d", s.Number)}
}

// find returns a checkpoint by its number.
func find(line []checkpoint.Standing, number int64) (side, error) {
	for _, s := range line {
		if s.Number == number {
			return sideOf(s), nil
		}
	}
	return side{}, tools.Refuse("This task has no checkpoint %d, or a rewind has left it behind: the tool checkpoints lists those that there are.", number)
}

// now stores the files as they are, without stopping the agent. That is no work for checkpoints, which
// would have to wait for it.
func (a *toolAnswers) now(ctx context.Context) (side, error) {
	d := a.d
	now := side{name: "the files as they are now"}
	var failed error
	err := d.inTurn(ctx, func(ctx context.Context) error {
		stretch, done := d.comparing.Stretch(ctx), d.comparing.CountWork()
		defer done()
		stretch.Begin()
		now.commit, failed = d.taker.StoreLive(ctx, stretch.Rest)
		return nil
	})
	if err == nil {
		err = failed
	}
	return now, err
}

package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/clew-dev/clew/internal/clip"
)

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// width returns the width of the terminal behind a stream, or 0 if it is not a terminal.
func width(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	w, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return w
}

// redraws reports whether a stream is a terminal on which text can be drawn in place of other text.
func redraws(stream any) bool { return isTerminal(stream) && os.Getenv("TERM") != "dumb" }

// height returns the number of lines of the terminal behind a stream, or 0 if it is not a terminal.
func height(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	_, h, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return h
}

// style colours text if it is on, and returns it unchanged otherwise.
type style struct{ on bool }

// styleFor returns the style for a stream: on for a terminal, unless the user disabled colours.
func styleFor(stream any) style { return style{on: isTerminal(stream) && !noColor()} }

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string   { return s.paint("1", text) }
func (s style) faint(text string) string  { return s.paint("2", text) }
func (s style) red(text string) string    { return s.paint("31", text) }
func (s style) green(text string) string  { return s.paint("32", text) }
func (s style) yellow(text string) string { return s.paint("33", text) }
func (s style) blue(text string) string   { return s.paint("34", text) }
func (s style) cyan(text string) string   { return s.paint("36", text) }

// plain makes untrusted text safe for a terminal: it escapes characters that could
// move the cursor, change colours or reorder letters. Line breaks and tabs stay.
func plain(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if utf8.ValidString(text) && !strings.ContainsFunc(text, dangerous) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < utf8.RuneSelf && dangerous(r):
			fmt.Fprintf(&b, "\\x%02x", text[i])
		case dangerous(r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

// dangerous reports whether a terminal could act on a character.
func dangerous(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	// Category Cf holds the marks that change the direction of writing. The
	// zero-width joiner is in it too, but emoji need it.
	return unicode.IsControl(r) || (unicode.Is(unicode.Cf, r) && r != '\u200d')
}

// oneLine makes untrusted text safe for a table cell: escaped, on one line.
func oneLine(text string) string {
	return strings.Join(strings.Fields(plain(text)), " ")
}

// progress shows on standard error what a command is waiting for: a spinner on a
// terminal, or one line per change elsewhere.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	live     bool
	style    style
	width    int
	state    string
	start    time.Time
	stopped  chan struct{}
	finished sync.WaitGroup
}

// newProgress starts a progress. On a terminal, the caller must stop it.
func newProgress(w io.Writer) *progress {
	p := &progress{w: w, live: redraws(w), style: styleFor(w), width: width(w), start: time.Now()}
	if p.live {
		p.stopped = make(chan struct{})
		p.finished.Go(p.spin)
	}
	return p
}

// progressDelay is how long a request may take before its progress is shown.
const progressDelay = 2 * time.Second

// progressIfSlow shows the state once a request has taken longer than progressDelay.
// stop ends it.
func (p *plugin) progressIfSlow(state string) (stop func()) {
	_, stop = p.updatesIfSlow(state)
	return stop
}

// saidBefore reports whether standard error, which is no terminal, has the state already: a
// command that reads many pages waits for each of them.
func (p *plugin) saidBefore(state string) bool {
	_, said := p.said.LoadOrStore(state, true)
	return said && !isTerminal(p.ErrOut)
}

// updatesIfSlow is progressIfSlow for a request whose state changes: update replaces
// the state.
func (p *plugin) updatesIfSlow(state string) (update func(string), stop func()) {
	var mu sync.Mutex
	var shown *progress
	ended := false
	timer := time.AfterFunc(progressDelay, func() {
		mu.Lock()
		defer mu.Unlock()
		if ended || p.silent.Load() || p.saidBefore(state) {
			return
		}
		shown = newProgress(p.ErrOut)
		shown.update(state)
	})
	update = func(now string) {
		mu.Lock()
		defer mu.Unlock()
		state = now
		if shown != nil && shown.live { // elsewhere, each update would print a line
			shown.update(now)
		}
	}
	stop = func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		if ended = true; shown != nil {
			shown.stop()
			shown = nil
		}
	}
	return update, stop
}

// update shows a new state, which should be a few words.
func (p *progress) update(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state = oneLine(state)
	if state == p.state || state == "" {
		return
	}
	p.state = state
	if !p.live {
		fmt.Fprintln(p.w, state)
	}
}

// stop removes the spinner.
func (p *progress) stop() {
	if p.stopped == nil {
		return
	}
	close(p.stopped)
	p.finished.Wait()
	p.stopped = nil
}

// spin draws the spinner until stop is called.
func (p *progress) spin() {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-p.stopped:
			fmt.Fprint(p.w, "\r\x1b[K")
			return
		case <-ticker.C:
			p.mu.Lock()
			line := clip.Runes(fmt.Sprintf("%c %s (%ds)", frames[i%len(frames)], p.state, int(time.Since(p.start).Seconds())), p.width-1)
			p.mu.Unlock()
			fmt.Fprint(p.w, "\r\x1b[K"+p.style.cyan(line))
		}
	}
}

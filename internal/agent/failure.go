package agent

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Cause is the kind of a failure. It decides whether another attempt can help.
type Cause string

const (
	// CauseUnknown: nothing is known but that the agent failed.
	CauseUnknown Cause = ""
	// CauseUnauthorized: the model's API does not accept the credentials.
	CauseUnauthorized Cause = "Unauthorized"
	// CauseOutOfCredit: the account has no credit or quota left.
	CauseOutOfCredit Cause = "OutOfCredit"
	// CauseRateLimited: the model's API asks for a pause.
	CauseRateLimited Cause = "RateLimited"
	// CauseModelUnavailable: the model's API fails, is overloaded or cannot be reached.
	CauseModelUnavailable Cause = "ModelUnavailable"
	// CauseInvalidOptions: the program does not accept its arguments.
	CauseInvalidOptions Cause = "InvalidOptions"
	// CauseSessionUnknown: the program does not have the session it should go on with.
	CauseSessionUnknown Cause = "SessionUnknown"
	// CauseGaveUp: the agent stopped before the work was done, in a loop say.
	CauseGaveUp Cause = "GaveUp"
	// CauseTooOld: the program is older than the oldest version that works.
	CauseTooOld Cause = "TooOld"
	// CauseProgramNotFound: the container has no such program.
	CauseProgramNotFound Cause = "ProgramNotFound"
	// CauseProgramNotExecutable: the program is there, and cannot be executed.
	CauseProgramNotExecutable Cause = "ProgramNotExecutable"
	// CauseIdle: the agent was ended because it had been silent for too long.
	CauseIdle Cause = "Idle"
)

// Failure is why a run of an agent failed.
type Failure struct {
	Cause Cause `json:"cause,omitempty"`
	// Message is what the agent said, in its own words.
	Message string `json:"message,omitempty"`
	// RetryAfter is the pause that the model's API asked for; 0 for none.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
}

// Outcome is what a run has told of its end so far.
type Outcome struct {
	// Done: the agent has given its final answer, or said that it failed. What
	// its processes do after that is no part of the task.
	Done bool `json:"done,omitempty"`
	// Failure is the last error that the agent told of, until it goes on; nil for none.
	Failure *Failure `json:"failure,omitempty"`
	// Counted: the run has told of all the tokens it used.
	Counted bool `json:"counted,omitempty"`
}

// outcome keeps a run's Outcome for a parser.
type outcome struct{ told Outcome }

// Outcome implements Parser.
func (o *outcome) Outcome() Outcome { return o.told }

// goOn notes that the agent works, whatever it told of before.
func (o *outcome) goOn() { o.told = Outcome{} }

// trouble notes an error that the agent may yet get over.
func (o *outcome) trouble(f *Failure) { o.told = Outcome{Failure: f} }

// end notes the agent's last word; f is nil for an answer.
func (o *outcome) end(f *Failure) { o.told = Outcome{Done: true, Failure: f} }

// statusCode finds the HTTP status in what an agent prints of an API error.
var statusCode = regexp.MustCompile(`(?i)(?:\bAPI error: |\bstatus(?:[ _]?code)?:? |"code": ?|\bHTTP )([45][0-9]{2})\b`)

// telling are words of APIs and CLIs, most telling first. They are looked for
// in lower case.
var telling = []struct {
	cause Cause
	words []string
}{
	{CauseSessionUnknown, []string{"no conversation found with session id", "no previous sessions found", "session not found",
		"no rollout found for thread", "no saved session found", "invalid session identifier", "thread not found"}},
	{CauseOutOfCredit, []string{"credit balance is too low", "insufficient_quota", "billing_error", "exceeded your current quota",
		"quota exceeded. check your plan", "payment required", "insufficient credit", "insufficient balance", "usage limit", "credits are depleted"}},
	{CauseUnauthorized, []string{"authentication_error", "authentication_failed", "invalid x-api-key", "invalid api key", "incorrect api key",
		"invalid_api_key", "api key not valid", "unauthenticated", "unauthorized", "permission_error", "permission_denied",
		"please run /login", "not logged in", "invalid auth method", "no api key"}},
	{CauseRateLimited, []string{"rate_limit", "rate limit", "too many requests", "resource_exhausted"}},
	{CauseModelUnavailable, []string{"overloaded", "high demand", "api_error", "server_error", "internal server error", "bad gateway",
		"service unavailable", "gateway timeout", "econnrefused", "econnreset", "etimedout", "enotfound", "eai_again", "connection error",
		"connection refused", "fetch failed", "stream disconnected", "error sending request", "unable to connect", "request timed out"}},
}

// causeOf classifies an error by its HTTP status, 0 if that is not known, and by
// its words.
func causeOf(status int, text string) Cause {
	lower := strings.ToLower(text)
	says := func(c Cause) bool {
		for _, t := range telling {
			if t.cause == c {
				return slices.ContainsFunc(t.words, func(w string) bool { return strings.Contains(lower, w) })
			}
		}
		return false
	}
	if status == 0 {
		if m := statusCode.FindStringSubmatch(text); m != nil {
			status, _ = strconv.Atoi(m[1])
		}
	}
	switch {
	case status == 402, status > 0 && says(CauseOutOfCredit) && retryAfter(text) == 0:
		return CauseOutOfCredit
	case status == 401, status == 403:
		return CauseUnauthorized
	case status == 429:
		return CauseRateLimited
	case status >= 500, status == 408:
		return CauseModelUnavailable
	}
	for _, t := range telling {
		if says(t.cause) {
			return t.cause
		}
	}
	return CauseUnknown
}

// failure makes a Failure of what an agent said.
func failure(status int, text string) *Failure {
	return &Failure{Cause: causeOf(status, text), Message: Text([]byte(strings.TrimSpace(text))), RetryAfter: retryAfter(text)}
}

// refusedOptions are how the argument parsers of the programs begin to complain.
var refusedOptions = regexp.MustCompile(`(?im)^(?:error: )?(?:unknown (?:option|arguments?)\b|unexpected argument\b|unrecognized (?:option|argument)\b|invalid value\b.* for '-)`)

// usageText is what a program prints in the place of an answer when it does not
// accept its arguments.
var usageText = regexp.MustCompile(`(?m)^(?:Usage: |Positionals:|Options:$)`)

// LastWords are what a program printed last that said nothing of a failure in
// its events.
type LastWords struct {
	Lines string
	// Began: the program printed an event, so its arguments were accepted.
	Began bool
	// Worked: it gave an answer or called a tool. From then on its lines may be
	// those of a tool, and nothing follows from them.
	Worked bool
}

// FailureOf classifies the last lines of an agent's program.
func FailureOf(a Adapter, words LastWords) *Failure {
	lines := words.Lines
	if !a.WordsTell() || words.Worked {
		return &Failure{Message: Text([]byte(strings.TrimSpace(lines)))}
	}
	f := failure(0, lines)
	if f.Cause != CauseUnknown || words.Began {
		return f
	}
	if m := refusedOptions.FindStringIndex(lines); m != nil {
		f.Cause = CauseInvalidOptions
		f.Message = strings.TrimSpace(lines[m[0]:])
	} else if usageText.MatchString(lines) {
		f.Cause = CauseInvalidOptions
	}
	return f
}

// pauses are how APIs and CLIs say when to try again.
var pauses = regexp.MustCompile(`(?i)(?:(?:re)?try(?:ing)?(?: again)? (?:in|after) |"?retry(?:-after|Delay)"?: ?"?)([0-9]{1,6}(?:\.[0-9]{1,9})?) ?(ms\b|milliseconds\b|s\b|seconds\b|m\b|minutes\b|h\b|hours\b)?`)

// maxPause is the longest that anybody waits on an API's word.
const maxPause = 6 * time.Hour

// retryAfter is the pause that a text asks for; 0 for none.
func retryAfter(text string) time.Duration {
	m := pauses.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0
	}
	unit := time.Second
	switch strings.ToLower(m[2]) {
	case "ms", "milliseconds":
		unit = time.Millisecond
	case "m", "minutes":
		unit = time.Minute
	case "h", "hours":
		unit = time.Hour
	}
	return min(time.Duration(n*float64(unit)), maxPause)
}

// apiMessage is the sentence in an error that an API told in JSON, alone or
// after other words; the text itself if there is none.
func apiMessage(text string) string {
	i := strings.IndexByte(text, '{')
	if i < 0 {
		return text
	}
	var e struct {
		Message string `json:"message"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	decoder := json.NewDecoder(strings.NewReader(text[i:]))
	if decoder.Decode(&e) != nil {
		return text
	}
	if e.Error.Message != "" {
		return e.Error.Message
	}
	if e.Message != "" {
		return e.Message
	}
	return text
}

// signals are those that end a process, by their numbers.
var signals = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}

// ExitMeaning says in words what an exit code means.
func ExitMeaning(code int) string {
	name, signaled := signals[code-128]
	switch {
	case code == 126:
		return "the agent's program cannot be executed (exit code 126): check the container's command and image"
	case code == 127:
		return "the agent's program was not found (exit code 127): check the container's command and image"
	case code == 137:
		return "the agent was killed by signal 9 (SIGKILL, exit code 137), perhaps because it ran out of memory"
	case signaled:
		return fmt.Sprintf("the agent was killed by signal %d (%s, exit code %d)", code-128, name, code)
	}
	return fmt.Sprintf("the agent ended with exit code %d", code)
}

// cutByKill finds in a tool's result that the tool's process was killed.
var cutByKill = regexp.MustCompile(`(?i)(?:\bexit(?:ed with)?(?: code| status)?:? |\[exit code )(?:130|137|143)\b|\bsignal:? (?:2|9|15|SIGINT|SIGKILL|SIGTERM)\b|\bterminated by signal\b|\bcommand was (?:aborted|interrupted|killed)\b|\buser aborted the command\b`)

// maxKillText is how much of a result is looked at, at either end.
const maxKillText = 512

// WasKilled tells whether a tool's result says that its process was killed. An
// agent that is being killed itself may print such a result of a call that was cut.
func WasKilled(output string) bool {
	if len(output) > 2*maxKillText {
		return cutByKill.MatchString(output[:maxKillText]) || cutByKill.MatchString(output[len(output)-maxKillText:])
	}
	return cutByKill.MatchString(output)
}

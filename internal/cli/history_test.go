package cli

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// requests is a fake history API. It records requests as "VERB path?query", and responds
// with the answers, whose keys are "VERB path".
type requests struct {
	t       *testing.T
	asked   []string
	bodies  []string
	answers map[string]any
}

// pagesOf is an answer of two pages.
type pagesOf [2]any

// withHistory puts a fake history API in front of the tests' API server.
func (b *bench) withHistory(answers map[string]any) *requests {
	b.Helper()
	r := &requests{t: b.T, answers: answers}
	target, err := url.Parse(server.Config.Host)
	b.try(err)
	transport, err := rest.TransportFor(server.Config)
	b.try(err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(target) },
		Transport: transport, FlushInterval: -1,
	}
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.Handle("/apis/history.clew.dev/v1alpha1/namespaces/"+b.namespace+"/", r)
	front := httptest.NewServer(mux)
	b.Cleanup(front.Close)
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: front.URL}, clientcmdapi.AuthInfo{})
	return r
}

func (r *requests) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	_, path, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/apis/history.clew.dev/v1alpha1/namespaces/"), "/")
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(q.Body)
		if err != nil {
			r.t.Error(err)
			return
		}
		body = unzipped
	}
	content, err := io.ReadAll(body)
	if err != nil {
		r.t.Error(err)
	}
	r.asked = append(r.asked, q.Method+" "+path+"?"+q.URL.RawQuery)
	r.bodies = append(r.bodies, string(content))
	w.Header().Set("Content-Type", "application/json")
	switch answer := r.answers[q.Method+" "+path].(type) {
	case nil:
		failed(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the history has nothing of this kind")
	case string:
		_, _ = io.WriteString(w, answer)
	case metav1.Status:
		failed(w, int(answer.Code), answer.Reason, answer.Message)
	case pagesOf:
		page := answer[0]
		if q.URL.Query().Get("continue") != "" {
			page = answer[1]
		}
		_ = json.NewEncoder(w).Encode(page)
	case func(http.ResponseWriter):
		answer(w)
	default:
		_ = json.NewEncoder(w).Encode(answer)
	}
}

func failed(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message, Details: &metav1.StatusDetails{Name: "x"},
	})
}

// query returns the query of the last request.
func (r *requests) query() string {
	r.t.Helper()
	if len(r.asked) == 0 {
		r.t.Fatal("the history API got no request")
	}
	_, query, _ := strings.Cut(r.asked[len(r.asked)-1], "?")
	return query
}

func taskHistoryOf(name, uid string) historyv1.TaskHistory {
	return historyv1.TaskHistory{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(noon.Add(-3 * time.Hour))},
		State:      "Completed", Preview: "Fix the login.\nThen\x1b[2J stop.", Updated: metav1.NewMicroTime(noon.Add(-time.Minute)),
		Messages: 40, ToolCalls: 12, InputTokens: 10_000, OutputTokens: 2300, CostMicroUSD: 12_300, Checkpoints: 4, Tools: []string{"Bash", "Edit"},
		Models: []historyv1.ModelUsage{{}, {Model: "claude-x"}},
	}
}

// fakeHistory serves the history of task talker, two messages per page. The newer event
// contains the query of the request.
func fakeHistory(t *testing.T, entries int) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const prefix = "/apis/history.clew.dev/v1alpha1/namespaces/"
		path, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, path, _ = strings.Cut(path, "/")
		w.Header().Set("Content-Type", "application/json")
		switch path {
		case "tasks/talker/conversation":
			first := 1
			if tail := 0; r.URL.Query().Has("tail") {
				_, _ = fmt.Sscanf(r.URL.Query().Get("tail"), "%d", &tail)
				first = entries - tail + 1
			}
			_, _ = fmt.Sscanf(r.URL.Query().Get("continue"), "from-%d", &first)
			limit := 2
			_, _ = fmt.Sscanf(r.URL.Query().Get("limit"), "%d", &limit)
			page := &historyv1.ConversationList{}
			for n := first; n <= entries && len(page.Items) < min(2, limit); n++ {
				page.Items = append(page.Items, entry(int64(n), "assistant", fmt.Sprintf("message %d", n)))
			}
			if next := first + len(page.Items); next <= entries {
				left := int64(entries - next + 1)
				page.Continue, page.RemainingItemCount = fmt.Sprintf("from-%d", next), &left
			}
			_ = json.NewEncoder(w).Encode(page)
		case "timelines", "tasks/talker/timeline":
			_ = json.NewEncoder(w).Encode(&historyv1.TimelineEventList{Items: []historyv1.TimelineEvent{
				{Time: metav1.NewMicroTime(noon.Add(time.Minute)), Task: "talker", Type: "checkpoint", Reason: "CheckpointCreated", Message: r.URL.RawQuery},
				{Time: metav1.NewMicroTime(noon), Task: "talker", Type: "task", Reason: "TaskStarted"},
			}})
		case "tasks/silent/conversation":
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable, Code: 503, Message: "Postgres is away",
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404, Message: "there is no history of that task",
				Details: &metav1.StatusDetails{Name: "x"}, TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}})
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func TestProgressOfASlowRequestIsShown(t *testing.T) {
	b := newBench(t)
	answer := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-answer
		_ = json.NewEncoder(w).Encode(historyv1.TaskHistoryList{})
	}))
	defer slow.Close()
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: slow.URL}, clientcmdapi.AuthInfo{})
	time.AfterFunc(progressDelay+500*time.Millisecond, func() { close(answer) })
	if _, errOut := b.must("task", "list"); !strings.HasPrefix(errOut, "waiting for the history\n") {
		t.Errorf("standard error %q does not begin with the progress", errOut)
	}
}

func TestErrorsOfTheClusterAreExplained(t *testing.T) {
	b := newBench(t)
	_, _, err := b.clew("", "task", "history", "any")
	wantError(t, err, "does not serve Clew's history API")
	_, _, err = b.clew("", "checkpoint", "list", "--token", "wrong", "--client-certificate", "/dev/null")
	if err == nil {
		t.Error("a wrong certificate was accepted")
	}
	_, _, err = b.clew("", "checkpoint", "list", "-s", "https://127.0.0.1:1")
	wantError(t, err, "cannot be reached")
	_, _, err = b.clew("", "checkpoint", "list", "--as", "nobody")
	wantError(t, err, "ask an administrator")
}

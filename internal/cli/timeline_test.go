package cli

import (
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

func TestTimeline(t *testing.T) {
	b := newBench(t)
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: fakeHistory(t, 0).URL}, clientcmdapi.AuthInfo{})
	out, _ := b.must("timeline", "talker", "--type", "checkpoint,rewind", "--since", "2h", "--limit", "2")
	lines := strings.Split(out, "\n")
	if len(lines) != 4 {
		t.Fatalf("the timeline has %d lines; want a header, two events and the end:\n%s", len(lines), out)
	}
	wantParts(t, "the older event", lines[1], "TaskStarted")
	wantParts(t, "the newer event, which repeats the query,", lines[2], "CheckpointCreated",
		"limit=2", "type=checkpoint%2Crewind", "since=2026-11-21T10%3A00%3A00Z")
	out, _ = b.must("timeline", "-o", "json")
	list := decode[historyv1.TimelineEventList](t, out)
	wantText(t, "kind of the list", "TimelineEventList", list.Kind)
	if len(list.Items) != 2 {
		t.Errorf("the list has %d events; want 2:\n%s", len(list.Items), out)
	}
	for _, test := range []struct{ flag, value, err string }{
		{"--since", "yesterday", "it must be a duration"},
		{"--limit", "-1", "it must be 0 or more"},
		{"-o", "table2", "must be one of table, json, yaml"},
	} {
		_, _, err := b.clew("", "timeline", test.flag, test.value)
		wantError(t, err, test.err)
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/gitbomb"
)

// taskFloods returns the floods for which a task's tokens and name are enough.
func (t *tenant) taskFloods(ctx context.Context) map[string]flood {
	for t.renew(ctx, 0, 0) != nil && ctx.Err() == nil {
		rest(ctx, time.Second)
	}
	floods := map[string]flood{"tokens": {workers: 1, pause: 10 * time.Second, once: t.renew}}
	for name, f := range t.serverFloods() {
		floods["server/"+name] = f
	}
	for name, f := range t.gitFloods() {
		floods["git/"+name] = f
	}
	floods["api/checkpoints"] = t.apiFloods()["checkpoints"]
	return floods
}

// floods returns all floods of a tenant.
func (t *tenant) floods(ctx context.Context) map[string]flood {
	floods := t.taskFloods(ctx)
	for name, f := range t.apiFloods() {
		floods["api/"+name] = f
	}
	return floods
}

// serverFloods returns the floods of Clew's server.
func (t *tenant) serverFloods() map[string]flood {
	url := "https://" + t.server
	plain, zipped := emptyRecords(16<<20-2, false), emptyRecords(64<<20, true)
	head := func(token string) string {
		return "POST " + appendPath + " HTTP/1.1\r\nHost: clew-server\r\nContent-Type: application/proto\r\nContent-Length: 16000000\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	}
	return map[string]flood{
		"garbage": {workers: 8, once: func(ctx context.Context, _, i int) error {
			token := t.madeUp(daemonapi.ServerAudience)
			if i%3 == 0 {
				token = fmt.Sprintf("garbage.%d.token", rand.Uint64())
			}
			return send(ctx, t.http, http.MethodPost, url+appendPath, token, strings.NewReader("x"), "Content-Type", "application/proto")
		}},
		"handshakes": {workers: 2, once: func(ctx context.Context, _, _ int) error {
			return send(ctx, t.fresh, http.MethodPost, url+appendPath, t.madeUp(daemonapi.ServerAudience), strings.NewReader("x"), "Content-Type", "application/proto")
		}},
		"bombs": {workers: 3, once: func(ctx context.Context, _, _ int) error {
			return send(ctx, t.http, http.MethodPost, url+appendPath, t.token(daemonapi.ServerAudience), bytes.NewReader(plain), "Content-Type", "application/proto")
		}},
		"zip-bombs": {workers: 1, once: func(ctx context.Context, _, _ int) error {
			return send(ctx, t.http, http.MethodPost, url+appendPath, t.token(daemonapi.ServerAudience), bytes.NewReader(zipped),
				"Content-Type", "application/proto", "Content-Encoding", "gzip")
		}},
		"slow": {workers: 100, once: func(ctx context.Context, worker, _ int) error {
			token := t.token(daemonapi.ServerAudience)
			if worker%2 == 0 {
				token = t.madeUp(daemonapi.ServerAudience)
			}
			return t.drip(ctx, t.server, head(token))
		}},
		"slow-heads": {workers: 50, once: func(ctx context.Context, _, _ int) error { return t.drip(ctx, t.server, "POST / HTTP/1.1\r\nX: ") }},
		"streams": {workers: 200, once: func(ctx context.Context, _, _ int) error {
			return send(ctx, t.http, http.MethodPost, url+commandsPath, t.token(daemonapi.ServerAudience),
				strings.NewReader("\x00\x00\x00\x00\x00"), "Content-Type", "application/connect+proto")
		}},
	}
}

// gitFloods returns the floods of the gitstore.
func (t *tenant) gitFloods() map[string]flood {
	url := "https://" + t.gitstore + "/" + t.namespace + "/" + daemonapi.RepositoryKey(os.Getenv("HOSTILE_ORIGIN")) + ".git"
	advertise := func(ctx context.Context, client *http.Client, token, service string) error {
		return send(ctx, client, http.MethodGet, url+"/info/refs?service="+service, token, nil)
	}
	slow := func(service, token string) string {
		return "POST /" + strings.SplitN(url, "/", 4)[3] + "/" + service + " HTTP/1.1\r\nHost: clew-gitstore\r\nContent-Type: application/x-" + service +
			"-request\r\nContent-Length: 16000000\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	}
	return map[string]flood{
		"garbage": {workers: 4, once: func(ctx context.Context, _, _ int) error {
			return advertise(ctx, t.http, t.madeUp(daemonapi.GitStoreAudience), "git-upload-pack")
		}},
		"handshakes": {workers: 2, once: func(ctx context.Context, _, _ int) error {
			return advertise(ctx, t.fresh, t.madeUp(daemonapi.GitStoreAudience), "git-receive-pack")
		}},
		"bombs": {workers: 6, once: func(ctx context.Context, worker, i int) error {
			make := gitbomb.Delta
			if worker%2 == 0 {
				make = gitbomb.Commit
			}
			pack, tip := make(512 << 20)
			body := gitbomb.Push(fmt.Sprintf("refs/clew/flood/%d-%d", worker, i), pack, tip)
			return send(ctx, t.http, http.MethodPost, url+"/git-receive-pack", t.token(daemonapi.GitStoreAudience), bytes.NewReader(body),
				"Content-Type", "application/x-git-receive-pack-request")
		}},
		"big": {workers: 2, once: func(ctx context.Context, worker, i int) error {
			head := gitbomb.Push(fmt.Sprintf("refs/clew/big/%d-%d", worker, i), []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"), bytes.Repeat([]byte{7}, 20))
			body := io.MultiReader(bytes.NewReader(head), io.LimitReader(zeros{}, 1<<30))
			return send(ctx, t.http, http.MethodPost, url+"/git-receive-pack", t.token(daemonapi.GitStoreAudience), body, "Content-Type", "application/x-git-receive-pack-request")
		}},
		"lists": {workers: 8, once: func(ctx context.Context, worker, _ int) error {
			return advertise(ctx, t.http, t.token(daemonapi.GitStoreAudience), []string{"git-upload-pack", "git-receive-pack"}[worker%2])
		}},
		"fetches": {workers: 8, once: func(ctx context.Context, _, _ int) error {
			return t.clone(ctx, url)
		}},
		"slow": {workers: 60, once: func(ctx context.Context, worker, _ int) error {
			return t.drip(ctx, t.gitstore, slow([]string{"git-upload-pack", "git-receive-pack"}[worker%2], t.token(daemonapi.GitStoreAudience)))
		}},
	}
}

// objectID matches the ids in a list of refs.
var objectID = regexp.MustCompile("[0-9a-f]{40}")

// clone fetches everything in a repository that the task may see.
func (t *tenant) clone(ctx context.Context, url string) error {
	token := t.token(daemonapi.GitStoreAudience)
	refs, err := receive(ctx, t.http, url+"/info/refs?service=git-upload-pack", token)
	if err != nil {
		return err
	}
	ids := objectID.FindAllString(refs, -1)
	if len(ids) == 0 {
		return errors.New("the task sees no refs")
	}
	var wants strings.Builder
	for _, id := range ids {
		wants.WriteString("0032want " + id + "\n")
	}
	return send(ctx, t.http, http.MethodPost, url+"/git-upload-pack", token, strings.NewReader(wants.String()+"00000009done\n"),
		"Content-Type", "application/x-git-upload-pack-request")
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// apiFloods returns the floods of the Kubernetes API: objects of Clew's, and history.
func (t *tenant) apiFloods() map[string]flood {
	kinds := "/apis/clew.dev/v1alpha1/namespaces/" + t.namespace
	history := "/apis/history.clew.dev/v1alpha1/namespaces/" + t.namespace
	object := func(kind, name string, spec map[string]any) map[string]any {
		return map[string]any{"apiVersion": "clew.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"generateName": name}, "spec": spec}
	}
	ofTask := map[string]any{"name": t.task}
	template := map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": "agent", "image": os.Getenv("HOSTILE_IMAGE"), "imagePullPolicy": "IfNotPresent", "command": []string{"hostile", "agent"},
		"resources": map[string]any{"requests": map[string]string{"cpu": "10m"}, "limits": map[string]string{"cpu": "100m", "memory": "256Mi"}},
	}}}}
	return map[string]flood{
		"checkpoints": {workers: 2, pause: 100 * time.Millisecond, once: func(ctx context.Context, _, _ int) error {
			return t.kube(ctx, http.MethodPost, kinds+"/checkpoints", object("Checkpoint", "flood-", map[string]any{"taskRef": ofTask}), nil)
		}},
		"forks": {workers: 1, pause: 500 * time.Millisecond, once: func(ctx context.Context, _, _ int) error {
			return t.kube(ctx, http.MethodPost, kinds+"/forks", object("Fork", "flood-", map[string]any{
				"sourceRef": ofTask, "variants": []any{map[string]any{"name": fmt.Sprintf("fork-%x", rand.Uint64())}}}), nil)
		}},
		"tasks": {workers: 1, pause: 500 * time.Millisecond, once: func(ctx context.Context, _, _ int) error {
			return t.kube(ctx, http.MethodPost, kinds+"/tasks", object("Task", "flood-", map[string]any{
				"prompt": "x", "agent": map[string]any{"type": "Exec"}, "workspace": map[string]any{"size": "1Gi"}, "template": template}), nil)
		}},
		"annotations": {workers: 2, pause: 20 * time.Millisecond, once: func(ctx context.Context, _, i int) error {
			return t.kube(ctx, http.MethodPatch, kinds+"/tasks/"+t.task, map[string]any{"metadata": map[string]any{"annotations": map[string]string{"flood": fmt.Sprint(i)}}}, nil)
		}},
		"searches": {workers: 4, once: func(ctx context.Context, _, i int) error {
			return t.kube(ctx, http.MethodGet, history+fmt.Sprintf("/search?q=line+OR+%x&limit=100", i%16), nil, nil)
		}},
		"conversation": {workers: 4, once: func(ctx context.Context, _, _ int) error {
			return t.kube(ctx, http.MethodGet, history+"/tasks/"+t.task+"/conversation?full=true&limit=500", nil, nil)
		}},
		"exports": {workers: 2, once: func(ctx context.Context, _, _ int) error {
			return t.kube(ctx, http.MethodGet, history+"/taskhistories/"+t.task+"/export", nil, nil)
		}},
	}
}

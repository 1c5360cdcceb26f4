package podidentity_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clew-dev/clew/internal/podidentity"
)

// strictServer is an API server that accepts no token. It has the pod fix-1.
type strictServer struct {
	issuer issuer
	// down are parts of the paths that fail.
	down []string
}

func (s strictServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	for _, ending := range s.down {
		if strings.Contains(r.URL.Path, ending) {
			http.Error(w, "{}", http.StatusServiceUnavailable)
			return
		}
	}
	var answer any
	switch {
	case strings.HasSuffix(r.URL.Path, "/jwks"):
		answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.issuer.key.Public(), KeyID: s.issuer.id}}}
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		answer = review
	case strings.HasSuffix(r.URL.Path, "/fix-1"):
		pod := taskPod()
		pod.APIVersion, pod.Kind = "v1", "Pod"
		answer = pod
	default:
		w.WriteHeader(http.StatusNotFound)
		answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func TestATokenWhosePodIsGoneIsDistinguished(t *testing.T) {
	fresh, old := newIssuer(), newIssuer()
	old.key, old.expiry = fresh.key, -time.Hour
	stranger := newIssuer()
	pod := func(name, uid string) map[string]any {
		return map[string]any{"namespace": "team", "pod": map[string]any{"name": name, "uid": uid}}
	}
	for name, test := range map[string]struct {
		token string
		down  []string
		gone  bool
		kind  error
	}{
		"the pod was deleted":                    {token: fresh.bound("clew.dev", "1", pod("fix-7", podUID)), gone: true, kind: podidentity.ErrUnauthenticated},
		"another pod has its name":               {token: fresh.bound("clew.dev", "1", pod("fix-1", "earlier")), gone: true, kind: podidentity.ErrUnauthenticated},
		"the pod was deleted longer ago":         {token: old.bound("clew.dev", "1", pod("fix-7", podUID)), gone: true, kind: podidentity.ErrUnauthenticated},
		"the token was withdrawn":                {token: fresh.bound("clew.dev", "1", pod("fix-1", podUID)), kind: podidentity.ErrUnauthenticated},
		"the token has expired":                  {token: old.bound("clew.dev", "1", pod("fix-1", podUID)), kind: podidentity.ErrUnauthenticated},
		"somebody else signed it":                {token: stranger.bound("clew.dev", "1", pod("fix-7", podUID)), kind: podidentity.ErrUnauthenticated},
		"it has another audience":                {token: fresh.bound("other", "1", pod("fix-7", podUID)), kind: podidentity.ErrUnauthenticated},
		"it is not bound to a pod":               {token: fresh.token("team", "clew.dev", "1"), kind: podidentity.ErrUnauthenticated},
		"it is not a token":                      {token: "garbage", kind: podidentity.ErrUnauthenticated},
		"tokens cannot be reviewed":              {token: fresh.bound("clew.dev", "1", pod("fix-7", podUID)), down: []string{"tokenreviews"}, kind: podidentity.ErrUnavailable},
		"pods cannot be read":                    {token: fresh.bound("clew.dev", "1", pod("fix-7", podUID)), down: []string{"/pods/"}, kind: podidentity.ErrUnauthenticated},
		"it is old, and there are no keys":       {token: old.bound("clew.dev", "1", pod("fix-7", podUID)), down: []string{"/jwks"}, kind: podidentity.ErrUnauthenticated},
		"the pod was deleted, there are no keys": {token: fresh.bound("clew.dev", "1", pod("fix-7", podUID)), down: []string{"/jwks"}, gone: true, kind: podidentity.ErrUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			api := httptest.NewServer(strictServer{issuer: fresh, down: test.down})
			defer api.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{
				ContentType: "application/json", AcceptContentTypes: "application/json",
			}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = podidentity.New(client, lasting{}, podidentity.Options{}).Verify(t.Context(), test.token)
			if !errors.Is(err, test.kind) {
				t.Errorf("Verify returned %v, want %v", err, test.kind)
			}
			if gone := errors.Is(err, podidentity.ErrPodGone); gone != test.gone {
				t.Errorf("Verify returned %v; it is ErrPodGone: %t, want %t", err, gone, test.gone)
			}
		})
	}
}

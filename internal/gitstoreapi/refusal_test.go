package gitstoreapi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		stderr    string
		reason    gitstoreapi.Reason
		message   string
		retryable bool
	}{
		"of the gitstore, at the start": {
			stderr: "remote: clew: StaleAttempt: attempt 1 may not write any more\nfatal: unable to access 'https://x/': The requested URL returned error: 409\n",
			reason: gitstoreapi.StaleAttempt, message: "attempt 1 may not write any more",
		},
		"of the hook, padded": {
			stderr: "remote: clew: RefNotAllowed: refs/heads/main is not yours        \nTo https://x/\n ! [remote rejected] main -> main (pre-receive hook declined)\n",
			reason: gitstoreapi.RefNotAllowed, message: "refs/heads/main is not yours",
		},
		"quota": {
			stderr: "remote: clew: QuotaExceeded: no room\nfatal: unable to access 'https://x/': The requested URL returned error: 507\n",
			reason: gitstoreapi.QuotaExceeded, message: "no room", retryable: true,
		},
		"too large, git's words": {
			stderr: "remote: fatal: pack exceeds maximum allowed size (1.00 MiB)        \nerror: remote unpack failed: index-pack abnormal exit\n",
			reason: gitstoreapi.PushTooLarge, message: "the push is larger than the gitstore accepts",
		},
		"fsck": {
			stderr: "remote: error: object 1a2b: gitmodulesUrl: disallowed submodule url: -u./payload        \nremote: fatal: fsck error in pack objects        \nerror: remote unpack failed: index-pack abnormal exit\n",
			reason: gitstoreapi.ObjectsRefused, message: "the gitstore refused objects of the push as corrupt, missing or dangerous",
		},
		"full in mid-push": {
			stderr: "remote: fatal: write error: No space left on device\nerror: remote unpack failed: index-pack abnormal exit\n",
			reason: gitstoreapi.VolumeFull, message: "the gitstore's volume ran full during the push; nothing of it was stored", retryable: true,
		},
		"no token": {
			stderr: "fatal: could not read Username for 'https://x': terminal prompts disabled\n",
			reason: gitstoreapi.Unauthenticated, message: "the gitstore did not accept the token", retryable: true,
		},
		"down": {
			stderr: "fatal: unable to access 'https://x/': Failed to connect to x port 8443 after 1 ms: Couldn't connect to server\n",
			reason: gitstoreapi.Unavailable, message: "the gitstore could not be reached, or the connection broke", retryable: true,
		},
		"proxy in between": {
			stderr: "fatal: unable to access 'https://x/': The requested URL returned error: 502\n",
			reason: gitstoreapi.Unavailable, message: "the gitstore could not be reached, or the connection broke", retryable: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := gitstoreapi.Parse(test.stderr)
			if !ok {
				t.Fatalf("Parse found no refusal, want %s", test.reason)
			}
			want := &gitstoreapi.Refusal{Reason: test.reason, Message: test.message}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
			if got.Retryable() != test.retryable {
				t.Errorf("Retryable returned %t, want %t", got.Retryable(), test.retryable)
			}
		})
	}
	for _, other := range []string{"", "error: src refspec x does not match any\n", "hint: clew: Forbidden: x\n"} {
		if got, ok := gitstoreapi.Parse(other); ok {
			t.Errorf("Parse(%q) returned %v, want no refusal", other, got)
		}
	}
}

func TestErrorIsWhatParseFinds(t *testing.T) {
	written := gitstoreapi.New(gitstoreapi.VolumeFull, "%d bytes left", 7)
	got, ok := gitstoreapi.Parse(written.Error() + "\n")
	if !ok || *got != *written {
		t.Errorf("Parse returned %v, want %v", got, written)
	}
}

func TestARefusedAttemptLearnsWhichOneIsTheNewest(t *testing.T) {
	written := gitstoreapi.Stale("fix", 3, 17).Error()
	for stderr, want := range map[string]int64{
		"remote: " + written + "        \nfatal: unable to access 'https://x/': The requested URL returned error: 409\n": 17,
		"fatal: unable to access 'https://x/': The requested URL returned error: 409\n":                                  0,
		"remote: clew: PodGone: because attempt 4 has been seen\n":                                                       0,
		"remote: clew: StaleAttempt: because attempt 99999999999999999999 has been seen\n":                               0,
	} {
		refused, ok := gitstoreapi.Parse(stderr)
		if !ok || refused.Newest() != want {
			t.Errorf("%q: %+v names attempt %d as the newest, want %d", stderr, refused, refused.Newest(), want)
		}
	}
}

// TestTheWordsThatOtherVersionsMatchNeverChange spells them out: daemons and gitstores of
// other versions write and match these bytes. If it fails, change the constant back, not
// the test.
func TestTheWordsThatOtherVersionsMatchNeverChange(t *testing.T) {
	stale := "clew: StaleAttempt: attempt 3 of the task fix may not write any more, because attempt 17 has been seen; this pod has been replaced and should stop"
	if diff := cmp.Diff(stale, gitstoreapi.Stale("fix", 3, 17).Error()); diff != "" {
		t.Errorf("the refusal of a stale attempt (-want +got):\n%s", diff)
	}
	if refused, ok := gitstoreapi.Parse("remote: " + stale + "\n"); !ok || refused.Newest() != 17 {
		t.Errorf("%q names attempt %d as the newest (%v), want 17", stale, refused.Newest(), ok)
	}
	if diff := cmp.Diff("objects that it does not bring", gitstoreapi.MissingObjects); diff != "" {
		t.Errorf("MissingObjects (-want +got):\n%s", diff)
	}
}

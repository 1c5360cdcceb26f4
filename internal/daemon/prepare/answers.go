package prepare

import "context"

// answerKey is the key by which the journal knows that the agent was told the answer to a request.
const answerKey = "answer/"

// tellAnswers records what the agent is told about calls for which an earlier attempt was stopped,
// each once, as the next messages of the user.
func (p *preparer) tellAnswers(ctx context.Context) error {
	if p.cfg.Pod.PrepareOnly || len(p.cfg.Pod.Answers) == 0 {
		return nil
	}
	for _, a := range p.cfg.Pod.Answers {
		if err := p.once(answerKey+a.ID, func() error { return p.userMessage(a.Prompt) }); err != nil {
			return err
		}
	}
	return p.drain(ctx)
}
